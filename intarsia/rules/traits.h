#pragma once
// Traits: what dispatch needs to know about single ops besides their rules. Families declare them with
// RuleTable::traits.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "intarsia/rules/rule.h"

namespace intarsia {

// How a plain tensor in an argument beside distributed ones is treated, where it would otherwise be an error.
enum class PlainArgument {
  places,  // integers that pick elements: taken as replicated, after the ranks have compared them
  drawn,   // random numbers that the caller has drawn: the first rank's are used everywhere
};

// How FactoryScope makes a distributed tensor with an op that takes a size.
struct Factory {
  // Fills an empty tensor with random numbers. If not set, the op itself makes each shard, since all elements are
  // equal.
  std::function<void(at::Tensor& tensor, const OpCall& call, const std::optional<at::Generator>& generator)> draw;
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // of the draw if none is given; Undefined: the default dtype
};

// Arguments that an op writes although its schema does not say so, if the argument `flag` is true.
struct UnannouncedWrites {
  std::vector<std::string> arguments;
  std::string flag;
};

struct Traits {
  // About calls in dispatch
  std::vector<std::string> steered_by;         // numbers that decide which rows there are: they are part of the key
  std::map<std::string, PlainArgument> plain;  // by argument
  std::optional<UnannouncedWrites> writes;     // how it is called once per rank
  bool overwrites_at_random = false;           // in place, and does not read the old values: uniform_
  bool keeps_value = false;                    // of its last tensor: see Note [Origins]
  bool keeps_note = false;                     // of its first tensor: see Note [Tensors with a note]
  bool answers_by_form = false;  // returns a number that follows from forms, though not from those of meta tensors
  bool forms_empty = false;      // an empty plain tensor may take the form of the distributed one beside it
  std::string refused;           // why it cannot run on a distributed tensor, and what to do instead

  // About making tensors: see Note [Factories]
  std::optional<Factory> factory;
  bool makes_plain = false;       // a number, or memory that has a meaning: plain also in a FactoryScope
  bool hands_on = false;          // composite, but passes its arguments to one op and makes nothing: no FactoryScope
  bool about_the_handle = false;  // asks about the handle, its form or its history, not about values
};

}  // namespace intarsia
