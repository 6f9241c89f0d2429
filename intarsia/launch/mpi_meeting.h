#pragma once
// Finds a rendezvous for ranks that MPI already connects: rank 0 sends it to the others.

#include <chrono>
#include <string>

#include <c10/util/intrusive_ptr.h>

#include "intarsia/launch/mpi_port.h"
#include "intarsia/launch/rendezvous.h"

namespace intarsia {

struct MpiMeeting {
  Meeting meeting;
  c10::intrusive_ptr<c10d::Store> store;
};

// Rank 0 serves a store on a free port of `interface` (its name or an address), else of loopback if all ranks are on
// one host, else of the address its hostname resolves to, or of its first network interface. All ranks call it.
MpiMeeting meet_over_mpi(MpiPort& port, const std::string& interface, std::chrono::milliseconds timeout);

}  // namespace intarsia
