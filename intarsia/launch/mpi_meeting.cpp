#include "intarsia/launch/mpi_meeting.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include <c10/util/Exception.h>

namespace intarsia {
namespace {

// What rank 0 sends to the others.
struct Invitation {
  char host[256] = {};
  char error[512] = {};  // empty: there is a store
  uint16_t port = 0;
};

void write_text(char* to, size_t size, const std::string& text) {
  auto length = std::min(text.size(), size - 1);
  std::memcpy(to, text.data(), length);
  to[length] = 0;
}

std::string numeric(const sockaddr* address) {
  auto length = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  char host[NI_MAXHOST] = "";
  getnameinfo(address, length, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return host;
}

bool is_internet(const sockaddr* address) {
  return address && (address->sa_family == AF_INET || address->sa_family == AF_INET6);
}

// The first address of the interface of this name, IPv4 before IPv6; of any that is not loopback if the name is empty.
std::string address_of_interface(const std::string& name) {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found)) return "";
  std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(found, freeifaddrs);
  for (auto family : {AF_INET, AF_INET6}) {
    for (auto* one = found; one; one = one->ifa_next) {
      if (!is_internet(one->ifa_addr) || one->ifa_addr->sa_family != family || !(one->ifa_flags & IFF_UP)) continue;
      if (name.empty() ? !(one->ifa_flags & IFF_LOOPBACK) : name == one->ifa_name) return numeric(one->ifa_addr);
    }
  }
  return "";
}

// The address that the hostname resolves to, if others can reach it: Debian's installer writes 127.0.1.1.
std::string address_of_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(name, nullptr, &hints, &found)) return "";
  std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  for (auto* one = found; one; one = one->ai_next) {
    auto text = numeric(one->ai_addr);
    if (!is_loopback(text) && !text.starts_with("fe80:")) return text;
  }
  return "";
}

std::string address_for_others(const MpiPort& port, const std::string& interface) {
  if (!interface.empty()) return if_nametoindex(interface.c_str()) ? address_of_interface(interface) : interface;
  if (port.on_this_host == port.size) return "127.0.0.1";
  auto address = address_of_name();
  return address.empty() ? address_of_interface("") : address;
}

}  // namespace

MpiMeeting meet_over_mpi(MpiPort& port, const std::string& interface, std::chrono::milliseconds timeout) {
  Invitation invitation;
  MpiMeeting result;
  if (port.rank == 0) {
    try {
      auto address = address_for_others(port, interface);
      TORCH_CHECK_VALUE(!address.empty(),
                        "[init] this host has no address that others could reach. Set INTARSIA_INTERFACE.");
      auto served = serve_store(address, 0, timeout);
      result.store = served.store;
      write_text(invitation.host, sizeof invitation.host, address);
      invitation.port = served.port;
    } catch (const c10::Error& error) {
      write_text(invitation.error, sizeof invitation.error, error.what_without_backtrace());
    }
  }
  port.broadcast(&invitation, sizeof invitation);  // an error as well: the others wait for it
  TORCH_CHECK_WITH(DistNetworkError, !*invitation.error, invitation.error, port.rank ? " (on rank 0)" : "");
  result.meeting.host = invitation.host;
  result.meeting.port = invitation.port;
  if (port.rank) result.store = open_store(result.meeting, port.rank, port.size, timeout);
  return result;
}

}  // namespace intarsia
