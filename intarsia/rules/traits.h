#pragma once
// What dispatch has to know of single ops besides their rules, as their families declare it: RuleTable::traits.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "intarsia/rules/rule.h"

namespace intarsia {

// What becomes of a plain tensor in an argument that distributed ones stand beside, and that is otherwise an error.
enum class PlainArgument {
  places,  // whole numbers that pick elements: taken as replicated, after the ranks have compared them
  drawn,   // random numbers that the caller has drawn: those of the first rank serve everywhere
};

// How FactoryScope makes a distributed tensor by an op that takes a size.
struct Factory {
  // Fills an empty one with random numbers. Without it, the op itself makes each shard: all of its elements are alike.
  std::function<void(at::Tensor& tensor, const OpCall& call, const std::optional<at::Generator>& generator)> draw;
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // of what is drawn without a dtype; Undefined: the default dtype
};

// Arguments that an op writes although its schema does not say so, where a flag among them is true.
struct UnannouncedWrites {
  std::vector<std::string> arguments;
  std::string flag;
};

struct Traits {
  // About calls in dispatch
  std::vector<std::string> steered_by;         // numbers on which it depends which rows there are: they enter the key
  std::map<std::string, PlainArgument> plain;  // by argument
  std::optional<UnannouncedWrites> writes;     // how it is called once per rank
  bool overwrites_at_random = false;           // in place, and its old values are not read: uniform_
  bool keeps_value = false;                    // of its last tensor: see Note [Origins]
  bool keeps_note = false;                     // of its first tensor: see Note [Tensors with a note]
  bool answers_by_form = false;  // its result is a number that follows from forms; but not from those of meta tensors
  bool forms_empty = false;      // an empty plain tensor may take the form of the distributed one beside it
  std::string refused;           // why a distributed tensor cannot do what it does, and what to do

  // About making tensors: see Note [Factories]
  std::optional<Factory> factory;
  bool makes_plain = false;       // a number, or memory that has a meaning: plain also in a FactoryScope
  bool hands_on = false;          // composite, but hands its arguments to one op and makes nothing: no FactoryScope
  bool about_the_handle = false;  // about the handle, its form or its history, not about values
};

}  // namespace intarsia
