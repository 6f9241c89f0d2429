#pragma once
// Fills sharded tensors with the random numbers that one device would draw: each rank enters the generator's stream
// where its shard begins.

namespace intarsia {

class RuleTable;

void add_draws(RuleTable& table);

}  // namespace intarsia
