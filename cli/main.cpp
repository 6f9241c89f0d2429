// The command `intarsia`: a table of subcommands.

#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string>

#include "cli/checkpoint.h"
#include "cli/explain.h"
#include "cli/ops.h"
#include "cli/run.h"
#include "intarsia/core/world.h"

namespace {

struct Subcommand {
  const char* name;
  const char* summary;
  int (*main)(int argc, char** argv);  // argv[0] is the name
};

const Subcommand kSubcommands[] = {
    {"run", "start a program as several ranks on this machine", intarsia::cli::run_main},
    {"explain", "show how an op would be run: rows, costs, the choice, its collectives", intarsia::cli::explain_main},
    {"checkpoint", "list, show, verify, convert and export checkpoints", intarsia::cli::checkpoint_main},
    {"ops", "list how every op is served: by a rule, by another op's, on whole tensors", intarsia::cli::ops_main},
};

void print_help(FILE* to) {
  std::fprintf(to,
               "intarsia: distributed tensors on LibTorch\n\n"
               "usage: intarsia <command> [arguments]\n"
               "       intarsia --help | --version | --cmake-dir\n\n"
               "commands:\n");
  for (auto& command : kSubcommands) std::fprintf(to, "  %-10s %s\n", command.name, command.summary);
  std::fprintf(to, "\n`intarsia <command> --help` says more.\n");
}

// For -DIntarsia_DIR=$(intarsia --cmake-dir): where an installed command finds the CMake package installed with it.
int print_cmake_dir() {
  auto prefix = std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
  for (auto* lib : {"lib", "lib64"}) {
    auto folder = prefix / lib / "cmake" / "Intarsia";
    if (std::filesystem::exists(folder / "IntarsiaConfig.cmake")) return std::printf("%s\n", folder.c_str()), 0;
  }
  std::fprintf(
      stderr,
      "[intarsia] there is no CMake package in %s/lib. This command was not installed: see `cmake --install`.\n",
      prefix.c_str());
  return 1;
}

int dispatch(int argc, char** argv) {
  std::string first = argc > 1 ? argv[1] : "";
  if (first == "--help" || first == "-h" || first == "help") return print_help(stdout), 0;
  if (first == "--version") return std::printf("intarsia %s\n", INTARSIA_VERSION), 0;
  if (first == "--cmake-dir") return print_cmake_dir();
  for (auto& command : kSubcommands) {
    if (first == command.name) return command.main(argc - 1, argv + 1);
  }
  if (!first.empty()) std::fprintf(stderr, "[intarsia] there is no command \"%s\".\n\n", first.c_str());
  print_help(stderr);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  intarsia::WorldScope alone(intarsia::world_of_one());  // a command is not a rank of a job, even if a rank starts it
  try {
    return dispatch(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
