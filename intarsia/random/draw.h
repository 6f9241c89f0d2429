#pragma once
// Random numbers for tensors that are cut: those that one device would draw. A rank enters the stream where its shard begins, and
// draws its own.

namespace intarsia {

class RuleTable;

void add_draws(RuleTable& table);

}  // namespace intarsia
