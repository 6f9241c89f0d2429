#include "cli/options.h"

#include <charconv>
#include <cstring>
#include <functional>
#include <map>

namespace intarsia::cli {
namespace {

template <class Number>
Number number(const std::string& option, const std::string& text, Number least, Number most) {
  Number value{};
  auto end = text.data() + text.size();
  auto read = std::from_chars(text.data(), end, value);
  if (read.ec == std::errc() && read.ptr == end && least <= value && value <= most) return value;
  throw UsageError("[run] " + option + " is \"" + text + "\". Give a number from " + std::to_string(least) + " to " +
                   std::to_string(most) + ".");
}

using Setter = std::function<void(RunOptions&, const std::string& option, const std::string& value)>;

void check_hosts(const RunOptions& options) {
  if (options.host >= options.hosts) {
    throw UsageError("[run] --host is " + std::to_string(options.host) + " of " + std::to_string(options.hosts) +
                     " hosts. Hosts count from 0.");
  }
  if (options.hosts > 1 && options.meet.find(':') == options.meet.npos) {
    throw UsageError("[run] --meet is \"" + options.meet +
                     "\". Several hosts need an address of host 0 and a port, as host0:29500.");
  }
}

const std::map<std::string, Setter>& setters() {
  static const Setter ranks = [](auto& o, auto& name, auto& text) { o.ranks = number<int64_t>(name, text, 1, 4096); };
  static const Setter bind = [](auto& o, auto&, auto& text) { o.bind = text; };
  static const std::map<std::string, Setter> table = {
      {"-n", ranks},
      {"--ranks", ranks},
      {"--hosts", [](auto& o, auto& name, auto& text) { o.hosts = number<int64_t>(name, text, 1, 4096); }},
      {"--host", [](auto& o, auto& name, auto& text) { o.host = number<int64_t>(name, text, 0, 4095); }},
      {"--meet", [](auto& o, auto&, auto& text) { o.meet = text; }},
      {"--secret", [](auto& o, auto&, auto& text) { o.secret = text; }},
      {"--bind", bind},
      {"--master-addr", bind},
      {"--port", [](auto& o, auto& name, auto& text) { o.port = number<uint16_t>(name, text, 1, 65535); }},
      {"--timeout", [](auto& o, auto& name, auto& text) { o.timeout = number<int64_t>(name, text, 1, 1000000); }},
      {"--grace", [](auto& o, auto& name, auto& text) { o.grace = number<double>(name, text, 0, 3600); }},
      {"--max-restarts",
       [](auto& o, auto& name, auto& text) { o.max_restarts = number<int64_t>(name, text, 0, 10000); }},
      {"--engine", [](auto& o, auto&, auto& text) { o.engine = text; }},
      {"--log-dir", [](auto& o, auto&, auto& text) { o.log_dir = text; }},
  };
  return table;
}

}  // namespace

const char* const kRunHelp = R"(intarsia run: start a program as several ranks on this machine

usage: intarsia run -n RANKS [options] [--] program [arguments]

  -n, --ranks RANKS     how many
  --no-prefix           pass output on as it is; otherwise every line starts with [rank]
  --log-dir DIR         also write the output of each rank to DIR/RANK.log
  --timeout SECONDS     for every wait of the ranks, sets INTARSIA_TIMEOUT (default 300)
  --engine NAME         what carries bytes between the ranks, sets INTARSIA_ENGINE: auto (default), shm or gloo
  --grace SECONDS       from SIGTERM to SIGKILL when ranks must stop (default 10)
  --max-restarts N      when a rank fails, start all ranks again, at most N times (default 0). A program that begins with
                        checkpoint::resume goes on from its newest checkpoint; restart_count() says how often that was
  --bind ADDR           the address or interface that the ranks talk through (default 127.0.0.1: this machine only; on several
                        hosts the one that leads to host 0); --master-addr is the same
  --port PORT           of the store where they meet, on 127.0.0.1 (default: a free one)

On several hosts, start it on each of them, with the same numbers:
  --hosts HOSTS         how many; each has RANKS ranks, those of host 0 come first
  --host HOST           which one this is, from 0
  --meet HOST:PORT      an address of host 0 that all hosts reach, and a free port there
  --secret FILE         a file that only you may read, with the secret of the job: host 0 makes it if it is missing, the others need
                        it, too (or INTARSIA_SECRET). Without a secret, everyone who reaches HOST:PORT is let in

Each rank finds RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment, as under
torchrun, and OMP_NUM_THREADS=1 unless it is set. Standard input goes to rank 0 unless it is a terminal. SIGINT, SIGTERM
and SIGHUP go to all ranks; if they end of it, no restart follows. When a rank fails, the others are stopped, and its status is the
status of the run (with --max-restarts, of the last one): 128 + N if it was killed by signal N.
)";

RunOptions parse_run(int argc, char** argv) {
  RunOptions options;
  int i = 1;
  for (; i < argc && argv[i][0] == '-'; ++i) {
    std::string word = argv[i];
    if (word == "--") {
      ++i;
      break;
    }
    if (word == "--help" || word == "-h") {
      options.help = true;
      return options;
    }
    if (word == "--no-prefix") {
      options.prefix = false;
      continue;
    }
    auto equals = word.starts_with("--") ? word.find('=') : word.npos;
    auto name = word.substr(0, equals);
    auto setter = setters().find(name);
    if (setter == setters().end()) throw UsageError("[run] there is no option " + name + ". See intarsia run --help.");
    if (equals == word.npos && ++i == argc) throw UsageError("[run] " + name + " needs a value.");
    setter->second(options, name, equals == word.npos ? argv[i] : word.substr(equals + 1));
  }
  options.program.assign(argv + i, argv + argc);
  check_hosts(options);
  if (!options.ranks) throw UsageError("[run] the number of ranks is missing. Write intarsia run -n 4 program.");
  if (options.program.empty()) throw UsageError("[run] the program is missing. Write intarsia run -n 4 program.");
  return options;
}

}  // namespace intarsia::cli
