#pragma once

namespace intarsia::cli {

// intarsia ops: lists how every ATen op runs.
int ops_main(int argc, char** argv);

}  // namespace intarsia::cli
