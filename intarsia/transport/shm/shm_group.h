#pragma once
// A group whose members exchange bytes through shared memory.

#include <memory>

#include "intarsia/comm/group.h"
#include "intarsia/transport/shm/shm_progress_engine.h"

namespace intarsia {

class HostGroup : public Group {
 public:
  // As ShmProgressEngine, for a group that is a part of a larger one.
  virtual void give_up_because(const std::string& why, Farewell farewell) const = 0;
  virtual void tell_awaited(int64_t rank) const = 0;
};

// Reduces in the order of the line, whatever the size, synchronously or not: the same bits as gloo and the simulation.
std::unique_ptr<HostGroup> make_shm_group(ShmLine line);

}  // namespace intarsia
