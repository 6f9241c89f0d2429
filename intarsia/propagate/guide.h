#pragma once
// A guide advises the layouts that another library would choose, for programs that rely on them: under the drop-in,
// those of PyTorch's DTensor.
//
// The advice is followed if the rows of the op's rule allow it, or if it makes all tensors whole, which is always
// right. So a guide decides about layouts and about what is sent, never about values. Without advice, or if no row
// allows it, our own choice applies.

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
  // All ranks must get the same answer. Decisions are cached, so the guide is asked once per kind of call.
  std::function<std::optional<Advice>(const Question& question)> advise;
  // Words an error about forms or meshes as the programs expect it. If not set, our own text is used.
  std::function<std::string(const std::string& op, const std::string& error)> word;
  // Called when a plain tensor of one element that has dims is read as a number.
  std::function<void(const std::string& op)> see_number;
};

// Sets the guide of the whole process. One without `advise` means that there is no guide.
void set_guide(Guide guide);

// The guide's advice for a call; none without a guide.
std::optional<Advice> advice_for(const Question& question);

// The text of an error about forms or meshes, worded by the guide if there is one.
std::string worded_by_guide(const std::string& op, const std::string& error);

// Calls the guide's see_number.
void show_number_to_guide(const std::string& op);

}  // namespace intarsia
