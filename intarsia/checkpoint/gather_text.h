#pragma once
// Gathers a text from every rank, and raises the errors of some ranks on all of them.

#include <functional>
#include <string>
#include <vector>

#include "intarsia/core/world.h"

namespace intarsia::checkpoint {

// The texts of all ranks of the world, in their order; `mine` are those of the hosted ranks. All ranks call it
// together.
std::vector<std::string> gather_texts(const World& world, const std::vector<std::string>& mine);

// Raises an error of `where` on all ranks if any of them passes a text: the texts with their ranks, or one text if all
// are equal.
void raise_together(const World& world, const std::string& where, const std::vector<std::string>& mine);

// Runs `step` on every rank. An error on one rank is raised on all; the rank itself raises it unchanged if the text
// names its function.
void do_together(const World& world, const std::string& where, const std::function<void()>& step);

// The message of an exception, without a backtrace.
std::string text_of_error(const std::exception& error);

}  // namespace intarsia::checkpoint
