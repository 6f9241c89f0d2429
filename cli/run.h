#pragma once
// intarsia run: starts a program as several ranks on this machine and waits for them.

namespace intarsia::cli {

int run_main(int argc, char** argv);

}  // namespace intarsia::cli
