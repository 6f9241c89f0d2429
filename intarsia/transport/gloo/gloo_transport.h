#pragma once
// The transport over c10d process groups: gloo's, which it makes, and existing ones of any backend.

#include <memory>
#include <mutex>
#include <string>

#include "intarsia/transport/gloo/members.h"
#include "intarsia/transport/transport.h"

namespace intarsia {

class GlooMaker;

// Carries every line.
class GlooTransport final : public Transport {
 public:
  // `interface`: see GlooMaker. Unless `direct`, uses a backend's collectives even where direct messages are faster.
  GlooTransport(std::string interface, bool direct);
  ~GlooTransport() override;
  Connection connect(const LineRequest& line) const override;

  // Connects the members of a line over its existing group, else over a new one of gloo. `levels`: some of them talk to
  // each other through memory, see Note [Two levels].
  SharedMembers connect_members(const LineRequest& line, bool levels = false) const;

 private:
  c10::intrusive_ptr<c10d::Backend> make_group(const LineRequest& line) const;
  std::shared_ptr<GlooMaker> maker(std::chrono::milliseconds timeout) const;
  std::string interface_;
  bool direct_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<GlooMaker> maker_;  // null until a line needs it
};

}  // namespace intarsia
