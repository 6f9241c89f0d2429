#pragma once
// Fills sharded tensors with the random numbers that one device would draw: each rank starts in the generator's stream
// where its shard begins.

namespace intarsia {

class RuleTable;

// Adds the random in-place ops to the table.
void add_draws(RuleTable& table);

}  // namespace intarsia
