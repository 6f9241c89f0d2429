#pragma once
// The two calls that go up. A layer knows only those below it, but the first distributed tensor, made by a lower layer,
// needs every op to be ready. Both are defined in ops/all.cpp, and tests/layers_test.py allows no third one.

namespace intarsia {

class RuleTable;

// Adds the rules, lowerings, traits and kernels of all ops to the table.
void add_all_ops(RuleTable& table);

// Registers our kernels for all of LibTorch's ops. Idempotent; called when the first tensor of ours is made.
void start();

}  // namespace intarsia
