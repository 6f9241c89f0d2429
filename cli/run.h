#pragma once
// intarsia run: starts a program as several ranks on this machine and stands by until all have ended.

namespace intarsia::cli {

int run_main(int argc, char** argv);

}  // namespace intarsia::cli
