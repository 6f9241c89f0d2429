#include "cli/ops.h"

#include <cstdio>
#include <map>
#include <string>

#include "intarsia/rules/coverage.h"

namespace intarsia::cli {
namespace {

constexpr const char* kHelp =
    "usage: intarsia ops [--all | --missing | --page]\n\n"
    "Says how ATen's ops are served on distributed tensors.\n"
    "  (nothing)   ops with a rule, written or derived\n"
    "  --all       every op\n"
    "  --missing   ops that run on whole tensors\n"
    "  --page      the page docs/ops.md\n";

bool is_listed(const Coverage& entry, const std::string& which) {
  if (which == "--all") return true;
  if (which == "--missing") return entry.served == Served::fallback;
  return entry.served == Served::rule || entry.served == Served::derived;
}

}  // namespace

int ops_main(int argc, char** argv) {
  std::string which = argc > 1 ? argv[1] : "";
  if (which == "--help" || which == "-h") return std::fputs(kHelp, stdout), 0;
  if (argc > 2 || (!which.empty() && which != "--all" && which != "--missing" && which != "--page")) {
    return std::fprintf(stderr, "[intarsia ops] cannot read \"%s\".\n\n%s", argv[argc - 1], kHelp), 2;
  }
  if (which == "--page") return std::fputs(coverage_page().c_str(), stdout), 0;
  std::map<std::string, int> counts;
  for (auto& entry : coverage()) {
    ++counts[str(entry.served)];
    if (is_listed(entry, which)) {
      std::printf("%-60s %-10s %s\n", entry.op.c_str(), str(entry.served).c_str(), entry.detail.c_str());
    }
  }
  std::printf("\n");
  for (auto& [served, count] : counts) std::printf("%6d %s\n", count, served.c_str());
  return 0;
}

}  // namespace intarsia::cli
