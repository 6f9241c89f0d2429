#include "cli/explain.h"

#include <cstdio>
#include <string>

#include <c10/util/Exception.h>

#include "intarsia/debug/explain.h"
#include "intarsia/simulation/simulation.h"

namespace intarsia::cli {
namespace {

constexpr const char* kHelp =
    "usage: intarsia explain OP TENSOR... [name=value...] [--mesh 2x4:dp,tp]\n\n"
    "Prints the ways to run an op, the cost of each, the choice and its collectives. Nothing runs.\n"
    "  OP          aten::mm, add.Tensor\n"
    "  TENSOR      shape, placements, dtype: \"[8, 12] S(0), R\", \"[8] S(0) long\"; none: left out\n"
    "  name=value  another argument: dim=1, dims=[0,1], keepdim=true, alpha=0.5\n"
    "  --mesh      the extents of the axes, and their names (default: 4)\n";

c10::IValue value_of(const std::string& text) {
  if (text == "true" || text == "false") return text == "true";
  if (text == "none" || text == "None") return c10::IValue();
  if (!text.empty() && text[0] == '[') {
    std::vector<int64_t> list;
    for (size_t at = 1; at < text.size();) {
      size_t read = 0;
      if (text[at] == ']') break;
      list.push_back(std::stoll(text.substr(at), &read));
      at += read;
      while (at < text.size() && (text[at] == ',' || text[at] == ' ')) ++at;
    }
    return list;
  }
  size_t read = 0;
  if (text.find_first_of(".eE") == text.npos) {
    int64_t number = std::stoll(text, &read);
    if (read == text.size()) return number;
  }
  return std::stod(text);
}

struct MeshText {
  std::vector<int64_t> shape;
  std::vector<std::string> names;
};

MeshText parse_mesh(const std::string& text) {
  MeshText mesh;
  auto colon = text.find(':');
  std::string word;
  for (auto c : text.substr(0, colon) + "x") {
    if (c != 'x')
      word += c;
    else
      mesh.shape.push_back(std::stoll(std::exchange(word, "")));
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
  std::vector<Imagined> tensors;
  std::map<std::string, c10::IValue> arguments;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    if (word == "--help" || word == "-h") return std::fputs(kHelp, stdout), 0;
    if (word == "--mesh" && i + 1 < argc)
      mesh_text = argv[++i];
    else if (op.empty())
      op = word;
    else if (word[0] == '[' || word == "none")
      tensors.push_back(parse_imagined(word));
    else if (auto equals = word.find('='); equals != word.npos)
      arguments[word.substr(0, equals)] = value_of(word.substr(equals + 1));
    else
      return std::fprintf(stderr, "[intarsia explain] cannot read \"%s\".\n\n%s", word.c_str(), kHelp), 2;
  }
  if (op.empty()) return std::fputs(kHelp, stderr), 2;
  auto form = parse_mesh(mesh_text);
  int64_t ranks = 1;
  for (auto extent : form.shape) ranks *= extent;
  auto world = simulate(ranks);
  try {
    auto mesh = init_device_mesh(c10::kCPU, form.shape, form.names);
    std::fputs(explain(op, tensors, mesh, arguments).text.c_str(), stdout);
  } catch (const c10::Error& error) {
    return std::fprintf(stderr, "%s\n", error.what_without_backtrace()), 1;
  }
  return 0;
}

}  // namespace intarsia::cli
