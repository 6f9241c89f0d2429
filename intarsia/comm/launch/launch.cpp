#include "intarsia/comm/launch/launch.h"

#include <charconv>
#include <cstring>
#include <initializer_list>

#include <c10/util/Exception.h>

namespace intarsia {
namespace {

// The variables of a launcher. Of two sizes the first that is set counts; two jobs name the job together. Some have one only.
struct Launcher {
  const char* name;
  const char* rank;
  const char* size[2];
  const char* local_rank;
  const char* job[2];
};

const Launcher kLaunchers[] = {
    {"torchrun", "RANK", {"WORLD_SIZE"}, "LOCAL_RANK", {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}},
    {"mpirun", "OMPI_COMM_WORLD_RANK", {"OMPI_COMM_WORLD_SIZE"}, "OMPI_COMM_WORLD_LOCAL_RANK",
     {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
    {"srun", "SLURM_PROCID", {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, "SLURM_LOCALID",
     {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
    {"mpiexec", "PMI_RANK", {"PMI_SIZE"}, "MPI_LOCALRANKID", {"PMI_JOBID"}},
};

std::string text_of(const Environment& environment, const char* name) {
  auto* value = environment(name);
  return value ? value : "";
}

bool on_one_host(const Environment& environment, const Launch& launch) {
  if (launch.by == "mpirun") return read_number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE") == launch.size;
  if (launch.by == "srun") {
    auto nodes = read_number(environment, "SLURM_STEP_NUM_NODES");
    return (nodes ? nodes : read_number(environment, "SLURM_NNODES")) == 1;
  }
  if (launch.by == "mpiexec") return read_number(environment, "MPI_LOCALNRANKS") == launch.size;
  return read_number(environment, "LOCAL_WORLD_SIZE") == launch.size;
}

// Below the ports that Linux hands out by itself (32768 and up), so that nothing else is likely to sit there.
uint16_t port_for(const std::string& job) {
  uint32_t hash = 2166136261;  // FNV-1a: the same in every process, as std::hash need not be
  for (unsigned char c : job) hash = (hash ^ c) * 16777619;
  return 10000 + hash % 20000;
}

// torchrun and `intarsia run` serve the store themselves.
bool launcher_serves(const Environment& environment, const Launch& launch) {
  auto text = text_of(environment, "TORCHELASTIC_USE_AGENT_STORE");
  return launch.by == "torchrun" && (text == "True" || text == "1");
}

}  // namespace

std::optional<int64_t> read_number(const Environment& environment, const char* name) {
  auto* text = environment(name);
  if (!text) return std::nullopt;
  int64_t number = 0;
  auto* end = text + std::strlen(text);
  auto read = std::from_chars(text, end, number);
  TORCH_CHECK_VALUE(read.ec == std::errc() && read.ptr == end && end != text && number >= 0, "[init] ", name, " is \"",
                    text, "\", which is not a whole number. Correct or unset it.");
  return number;
}

std::optional<Launch> read_launch(const Environment& environment) {
  for (auto& launcher : kLaunchers) {
    auto rank = read_number(environment, launcher.rank);
    auto size = read_number(environment, launcher.size[0]);
    if (!size && launcher.size[1]) size = read_number(environment, launcher.size[1]);
    if (!rank && (!size || launcher.size[1])) continue;  // a SLURM_NTASKS alone only says what was asked for
    TORCH_CHECK_VALUE(rank && size, "[init] of ", launcher.rank, " and ", launcher.size[0], " only ",
                      rank ? launcher.rank : launcher.size[0], " is set. Set both or neither.");
    TORCH_CHECK_VALUE(*rank < *size, "[init] ", launcher.rank, " is ", *rank, ", but ", launcher.size[0], " is ", *size,
                      ". Ranks count from 0 to ", *size - 1, ".");
    Launch launch{launcher.name, *rank, *size};
    launch.local_rank = read_number(environment, launcher.local_rank).value_or(0);
    launch.one_host = on_one_host(environment, launch);
    for (auto* name : launcher.job) {
      if (auto* value = name ? environment(name) : nullptr) launch.job += (launch.job.empty() ? "" : "-") + std::string(value);
    }
    return launch;
  }
  return std::nullopt;
}

Meeting read_meeting(const Environment& environment, const Launch& launch, const std::string& given) {
  if (!given.empty()) return parse_meeting(given, "InitOptions::rendezvous");
  if (auto text = text_of(environment, "INTARSIA_RENDEZVOUS"); !text.empty()) {
    return parse_meeting(text, "INTARSIA_RENDEZVOUS");
  }
  Meeting meeting;
  meeting.host = text_of(environment, "MASTER_ADDR");
  auto port = read_number(environment, "MASTER_PORT");
  TORCH_CHECK_VALUE(!port || (*port > 0 && *port < 65536), "[init] MASTER_PORT is ", *port,
                    ". Give a port from 1 to 65535.");
  if (meeting.host.empty() && launch.one_host) meeting.host = "127.0.0.1";
  if (!port && !launch.job.empty()) port = port_for(launch.job);
  TORCH_CHECK_VALUE(!meeting.host.empty() && port, "[init] ", launch.by, " started ", launch.size,
                    " ranks, but nothing says where they meet: ", meeting.host.empty() ? "MASTER_ADDR" : "MASTER_PORT",
                    " is not set. Set MASTER_ADDR and MASTER_PORT to the host of rank 0 and a free port on it, or "
                    "INTARSIA_RENDEZVOUS=file:///a/path/that/all/ranks/see.");
  meeting.port = *port;
  meeting.rank_zero_serves = !launcher_serves(environment, launch);
  return meeting;
}

bool knows_meeting(const Environment& environment, const Launch& launch, const std::string& given) {
  bool somewhere = !given.empty() || !text_of(environment, "INTARSIA_RENDEZVOUS").empty();
  bool host = !text_of(environment, "MASTER_ADDR").empty() || launch.one_host;
  bool port = !text_of(environment, "MASTER_PORT").empty() || !launch.job.empty();
  return somewhere || (host && port);
}

bool serves_mpi(const Environment& environment, const Launch& launch) {
  if (launch.by != "mpirun" && launch.by != "mpiexec") return false;
  for (auto* name : {"PMIX_SERVER_URI2", "PMIX_SERVER_URI3", "PMIX_SERVER_URI4", "PMI_FD", "PMI_PORT"}) {
    if (environment(name)) return true;
  }
  return false;
}

std::string read_interface(const Environment& environment, const Meeting& meeting, const Launch& launch) {
  if (auto text = text_of(environment, "INTARSIA_INTERFACE"); !text.empty()) return text;
  if (auto text = text_of(environment, "GLOO_SOCKET_IFNAME"); !text.empty()) return text.substr(0, text.find(','));
  return launch.one_host || is_loopback(meeting.host) ? "127.0.0.1" : "";
}

}  // namespace intarsia
