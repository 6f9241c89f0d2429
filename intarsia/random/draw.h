#pragma once
// Random numbers for tensors that are cut: those that one device would draw, in the order of its memory. Every rank runs through
// the numbers of the whole tensor, a chunk at a time, and keeps its own.

namespace intarsia {

class RuleTable;

void add_draws(RuleTable& table);

}  // namespace intarsia
