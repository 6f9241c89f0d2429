#include "cli/checkpoint.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <c10/util/Exception.h>

#include "intarsia/checkpoint/inspect.h"

namespace intarsia::cli {
namespace {

constexpr const char* kHelp =
    "usage: intarsia checkpoint list FOLDER           the complete checkpoints in a folder, the newest last\n"
    "       intarsia checkpoint show PATH             tensors, shapes, layouts, values, files and who holds what\n"
    "       intarsia checkpoint verify PATH           read everything and compare it with its checksums\n"
    "       intarsia checkpoint convert FROM TO [--files N]   write it once more, in N files (default: 1)\n\n"
    "PATH and FROM are a checkpoint, a folder with model.safetensors or model.safetensors.index.json, or one .safetensors file.\n";

int verify(const std::string& path) {
  auto problems = checkpoint::problems_of(path);
  for (auto& problem : problems) std::fprintf(stderr, "%s\n", problem.c_str());
  if (problems.empty()) std::printf("%s is as it was written.\n", path.c_str());
  return problems.empty() ? 0 : 1;
}

int usage_error(const std::string& what) {
  std::fprintf(stderr, "[intarsia checkpoint] %s\n\n%s", what.c_str(), kHelp);
  return 2;
}

}  // namespace

int checkpoint_main(int argc, char** argv) {
  std::vector<std::string> words;
  int64_t files = 1;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    if (word == "--help" || word == "-h") return std::fputs(kHelp, stdout), 0;
    if (word == "--files" && i + 1 < argc) {
      char* end = nullptr;
      files = std::strtoll(argv[++i], &end, 10);
      if (*end || files < 1) return usage_error("--files needs a number above 0.");
    } else {
      words.push_back(word);
    }
  }
  auto verb = words.empty() ? "" : words[0];
  try {
    if (verb == "list" && words.size() == 2) return std::fputs(checkpoint::listing(words[1]).c_str(), stdout), 0;
    if (verb == "show" && words.size() == 2) return std::fputs(checkpoint::description(words[1]).c_str(), stdout), 0;
    if (verb == "verify" && words.size() == 2) return verify(words[1]);
    if (verb == "convert" && words.size() == 3) return checkpoint::convert(words[1], words[2], files), 0;
  } catch (const c10::Error& error) {
    return std::fprintf(stderr, "[intarsia checkpoint] %s\n", error.what_without_backtrace()), 1;
  }
  return usage_error(verb.empty() ? "says what to do: list, show, verify or convert." : "cannot read this.");
}

}  // namespace intarsia::cli
