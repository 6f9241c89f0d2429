#pragma once
// Ranks tell each other texts: what they have written, and what went wrong.

#include <functional>
#include <string>
#include <vector>

#include "intarsia/core/world.h"

namespace intarsia::checkpoint {

// The texts of all ranks of the world, in their order; `mine` are those of the hosted ones. All ranks call it together.
std::vector<std::string> told_by_all(const World& world, const std::vector<std::string>& mine);

// An error of `where` on all ranks if any of them has a text here: the texts, with the ranks that tell them, unless all
// tell the same.
void raise_together(const World& world, const std::string& where, const std::vector<std::string>& mine);

// Runs `step` on every rank. An error on any of them is one on all: where it happened it stays as it is if it names its function.
void do_together(const World& world, const std::string& where, const std::function<void()>& step);

// What an exception says, without a backtrace.
std::string words_of(const std::exception& error);

}  // namespace intarsia::checkpoint
