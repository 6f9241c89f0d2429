#pragma once
// The two calls that go up. A layer knows only those below it; but the first distributed tensor, made by a lower layer,
// has to find every op ready. Both are defined in ops/all.cpp, and tests/layers_test.py allows no third one.

namespace intarsia {

class RuleTable;

// Fills the table with what is known of every op.
void add_all_ops(RuleTable& table);

// Puts our kernels behind all of LibTorch's ops. Idempotent; called when the first tensor of ours is made.
void start();

}  // namespace intarsia
