#include "cli/explain.h"

#include <charconv>
#include <cstdio>
#include <string>

#include <c10/util/Exception.h>

#include "intarsia/debug/explain.h"
#include "intarsia/debug/explain_text.h"
#include "intarsia/simulation/simulation.h"

namespace intarsia::cli {
namespace {

constexpr const char* kHelp =
    "usage: intarsia explain OP TENSOR... [name=value...] [--mesh 2x4:dp,tp]\n\n"
    "Prints the ways to run an op, the cost of each, the choice and its collectives. Nothing runs.\n"
    "  OP          aten::mm, add.Tensor\n"
    "  TENSOR      shape, placements, dtype: \"[8, 12] S(0), R\", \"[8] S(0) long\"; none: left out\n"
    "  name=value  another argument, read as the op's schema has it: dim=1, keepdim=true, alpha=0.5, dtype=double,\n"
    "              kernel_size=[2,2] (or 2, for all), equation=ij,jk->ik, weight=none; a tensor too: weight=\"[12] "
    "S(0)\"\n"
    "  --mesh      the extents of the axes, and their names (default: 4)\n";

struct MeshText {
  std::vector<int64_t> shape;
  std::vector<std::string> names;
};

int64_t extent_of(const std::string& word, const std::string& text) {
  int64_t extent = 0;
  auto read = std::from_chars(word.data(), word.data() + word.size(), extent);
  TORCH_CHECK_VALUE(read.ec == std::errc() && read.ptr == word.data() + word.size() && extent > 0,
                    "[explain] cannot read the mesh \"", text, "\". Write its extents and names, as in 2x4:dp,tp.");
  return extent;
}

MeshText parse_mesh(const std::string& text) {
  MeshText mesh;
  auto colon = text.find(':');
  std::string word;
  for (auto c : text.substr(0, colon) + "x") {
    if (c != 'x')
      word += c;
    else
      mesh.shape.push_back(extent_of(std::exchange(word, ""), text));
  }
  if (colon == text.npos) return mesh;
  for (auto c : text.substr(colon + 1) + ",") {
    if (c != ',')
      word += c;
    else
      mesh.names.push_back(std::exchange(word, ""));
  }
  return mesh;
}

}  // namespace

int explain_main(int argc, char** argv) {
  std::string op, mesh_text = "4";
  std::vector<std::string> tensors;
  std::map<std::string, std::string> named;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    if (word == "--help" || word == "-h") return std::fputs(kHelp, stdout), 0;
    if (word == "--mesh" && i + 1 < argc)
      mesh_text = argv[++i];
    else if (op.empty())
      op = word;
    else if (word[0] == '[' || word == "none")
      tensors.push_back(word);
    else if (auto equals = word.find('='); equals != word.npos)
      named[word.substr(0, equals)] = word.substr(equals + 1);
    else
      return std::fprintf(stderr, "[intarsia explain] cannot read \"%s\".\n\n%s", word.c_str(), kHelp), 2;
  }
  if (op.empty()) return std::fputs(kHelp, stderr), 2;
  try {
    auto form = parse_mesh(mesh_text);
    int64_t ranks = 1;
    for (auto extent : form.shape) ranks *= extent;
    auto world = simulate(ranks);
    auto call = parse_call(op, tensors, named);
    auto mesh = init_device_mesh(c10::kCPU, form.shape, form.names);
    std::fputs(explain(op, call.tensors, mesh, call.arguments).text.c_str(), stdout);
  } catch (const c10::Error& error) {
    return std::fprintf(stderr, "%s\n", error.what_without_backtrace()), 1;
  }
  return 0;
}

}  // namespace intarsia::cli
