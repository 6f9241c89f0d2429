#pragma once

namespace intarsia::cli {

// intarsia checkpoint list|show|verify|convert
int checkpoint_main(int argc, char** argv);

}  // namespace intarsia::cli
