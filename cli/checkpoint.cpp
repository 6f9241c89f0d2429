#include "cli/checkpoint.h"

#include <charconv>
#include <cstdio>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "intarsia/checkpoint/export.h"
#include "intarsia/checkpoint/inspect.h"
#include "intarsia/checkpoint/verify.h"

namespace intarsia::cli {
namespace {

constexpr const char* kHelp = R"(intarsia checkpoint: what is in checkpoints, and whether it is still as it was written

usage: intarsia checkpoint list FOLDER        the complete checkpoints in a folder, the newest last
       intarsia checkpoint show PATH          tensors, shapes, layouts, values, files and which file holds what
       intarsia checkpoint verify PATH        read everything and compare it with its checksums
       intarsia checkpoint convert PATH TO    write it once more as a checkpoint
       intarsia checkpoint export PATH TO     write the tensors of a checkpoint, but states of optimizers, as Hugging Face does

PATH is a checkpoint; for show, verify and convert also a folder with model.safetensors or
model.safetensors.index.json, or one .safetensors file.

  --replace             of convert and export: what is at TO may be replaced; otherwise that is an error
  --files N             of convert: in so many files (default 1)
  --item NAME           of export: only the tensors saved under this name, without it (model.fc1.weight becomes fc1.weight)
  --rename OLD=NEW      of export: write NEW wherever a name has OLD; of several such options, the first that fits
  --file-bytes N        of export: the most of one file, unless a single tensor has more (default 5368709120)

The status is 0, 1 if something is damaged or fails, 2 for a mistake in the command line, and 3 from verify if nothing
is wrong but values could not be checked, because the files have no checksums (those of Hugging Face have none).
)";

constexpr int kDamaged = 1, kMistake = 2, kUnchecked = 3;

struct Mistake : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Command {
  std::vector<std::string> words;  // the verb and its paths
  int64_t files = 1;
  std::string item;
  std::vector<std::pair<std::string, std::string>> renames;
  checkpoint::ExportOptions exporting;
  bool help = false;
};

int64_t number_above_0(const std::string& option, const std::string& text) {
  int64_t number = 0;
  auto end = text.data() + text.size();
  auto read = std::from_chars(text.data(), end, number);
  if (read.ec != std::errc() || read.ptr != end || number < 1) throw Mistake(option + " needs a number above 0.");
  return number;
}

std::pair<std::string, std::string> renaming(const std::string& text) {
  auto equals = text.find('=');
  if (equals == text.npos || equals == 0) throw Mistake("--rename needs OLD=NEW.");
  return {text.substr(0, equals), text.substr(equals + 1)};
}

Command parse(int argc, char** argv) {
  Command command;
  const std::map<std::string, std::function<void(const std::string&)>> options = {
      {"--files", [&](auto& text) { command.files = number_above_0("--files", text); }},
      {"--file-bytes", [&](auto& text) { command.exporting.file_bytes = number_above_0("--file-bytes", text); }},
      {"--item", [&](auto& text) { command.item = text; }},
      {"--rename", [&](auto& text) { command.renames.push_back(renaming(text)); }},
  };
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    auto option = options.find(word);
    if (word == "--help" || word == "-h") {
      command.help = true;
    } else if (word == "--replace") {
      command.exporting.replace = true;
    } else if (option != options.end()) {
      if (++i == argc) throw Mistake(word + " needs a value.");
      option->second(argv[i]);
    } else if (word.starts_with("--")) {
      throw Mistake("there is no option " + word + ".");
    } else {
      command.words.push_back(word);
    }
  }
  return command;
}

int verify(const std::string& path) {
  auto verified = checkpoint::verify(path);
  bool good = verified.problems.empty();
  std::fputs(checkpoint::str(verified, path).c_str(), good ? stdout : stderr);
  return !good ? kDamaged : verified.checksums ? 0 : kUnchecked;
}

std::string renamed(std::string name, const std::vector<std::pair<std::string, std::string>>& renames) {
  for (auto& [from, to] : renames) {
    auto at = name.find(from);
    if (at == name.npos) continue;
    for (; at != name.npos; at = name.find(from, at + to.size())) name.replace(at, from.size(), to);
    break;
  }
  return name;
}

int export_to(const Command& command) {
  auto options = command.exporting;
  options.rename = [&](const std::string& name) { return renamed(name, command.renames); };
  auto& to = command.words[2];
  auto done = checkpoint::export_checkpoint(command.words[1], to, command.item, options);
  std::printf(
      "%s: %lld tensors, %s, %lld file(s). Left out: %lld tensors of optimizers, %lld of other items, %lld "
      "numbers and texts.\n",
      to.c_str(), static_cast<long long>(done.tensors), checkpoint::bytes_text(done.bytes).c_str(),
      static_cast<long long>(done.files), static_cast<long long>(done.states), static_cast<long long>(done.others),
      static_cast<long long>(done.values));
  return 0;
}

int obey(const Command& command) {
  auto& words = command.words;
  auto verb = words.empty() ? "" : words[0];
  if (verb == "list" && words.size() == 2) return std::fputs(checkpoint::listing(words[1]).c_str(), stdout), 0;
  if (verb == "show" && words.size() == 2) return std::fputs(checkpoint::description(words[1]).c_str(), stdout), 0;
  if (verb == "verify" && words.size() == 2) return verify(words[1]);
  if (verb == "convert" && words.size() == 3)
    return checkpoint::convert(words[1], words[2], command.files, command.exporting.replace), 0;
  if (verb == "export" && words.size() == 3) return export_to(command);
  throw Mistake(verb.empty() ? "says what to do: list, show, verify, convert or export." : "cannot read this.");
}

}  // namespace

int checkpoint_main(int argc, char** argv) {
  try {
    auto command = parse(argc, argv);
    if (command.help) return std::fputs(kHelp, stdout), 0;
    return obey(command);
  } catch (const Mistake& mistake) {
    std::fprintf(stderr, "[intarsia checkpoint] %s\n\n%s", mistake.what(), kHelp);
    return kMistake;
  } catch (const c10::Error& error) {
    return std::fprintf(stderr, "[intarsia checkpoint] %s\n", error.what_without_backtrace()), kDamaged;
  }
}

}  // namespace intarsia::cli
