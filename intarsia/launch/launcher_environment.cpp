#include "intarsia/launch/launcher_environment.h"

#include <initializer_list>

#include <c10/util/Exception.h>

namespace intarsia {
namespace {

std::string text_of(const Environment& environment, const char* name) {
  auto* value = environment(name);
  return value ? value : "";
}

// Below the ports that Linux assigns (32768 and up), so that other programs are unlikely to use it.
uint16_t port_for(const std::string& job) {
  uint32_t hash = 2166136261;  // FNV-1a: the same in every process, which std::hash need not be
  for (unsigned char c : job) hash = (hash ^ c) * 16777619;
  return 10000 + hash % 20000;
}

// torchrun and `intarsia run` serve the store themselves.
bool launcher_serves(const Environment& environment, const Launch& launch) {
  auto text = text_of(environment, "TORCHELASTIC_USE_AGENT_STORE");
  return launch.by == "torchrun" && (text == "True" || text == "1");
}

}  // namespace

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
