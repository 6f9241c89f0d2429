#pragma once
// Layouts that somebody else would choose, for programs that rely on them: under the drop-in, those of PyTorch's
// DTensor.
//
// A guide is followed where the rows of the op's rule allow what it advises, and where all tensors are to be whole,
// which is always right. So it decides about layouts and about what is sent, never about values. Without advice, or
// with advice that no rows allow, the choice is our own.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "intarsia/propagate/choose.h"
#include "intarsia/rules/advised.h"

namespace intarsia {

struct Advice {
  std::vector<std::optional<Placements>> in;   // per tensor argument; none where it is plain or undefined
  std::vector<std::optional<Placements>> out;  // per result; none where it is not defined
};

struct Guide {
  // All ranks must get the same answer. Decisions are kept, so it is asked once per kind of call.
  std::function<std::optional<Advice>(const Question& question)> advise;
  // The words in which its programs expect an error about forms or meshes. Without it, they are ours.
  std::function<std::string(const std::string& op, const std::string& error)> word;
  // Sees a plain tensor of one element that has dims, and is read as a number.
  std::function<void(const std::string& op)> see_number;
};

// For the whole process. Without a function to advise there is no guide.
void set_guide(Guide guide);

// What it says of a call; none without a guide.
std::optional<Advice> advice_for(const Question& question);

// An error about forms or meshes, worded by the guide if there is one.
std::string worded_by_guide(const std::string& op, const std::string& error);

void show_number_to_guide(const std::string& op);

}  // namespace intarsia
