#include "intarsia/transport/two_level/levels.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "intarsia/comm/error_message.h"
#include "intarsia/comm/interrupts.h"

namespace intarsia {

// Pending messages are not waited for once the line is known to have failed.
template <class Begin>
void Levels::finish(Begin begin) const {
  try {
    if (auto wait = begin()) wait();
  } catch (const Interruption&) {
    line_->interrupt();
    throw;
  } catch (const std::exception& error) {
    if (!line_->sticky_error.exists()) line_->sticky_error.set(message_of(error));
    throw;
  }
}

Levels::Levels(std::shared_ptr<DirectLine> line, const Hosts& hosts, std::shared_ptr<const HostGroup> inside)
    : line_(std::move(line)), begins_(hosts.begins), host_(hosts.own), inside_(std::move(inside)) {}

int64_t Levels::host_of(int64_t member) const {
  return std::upper_bound(begins_.begin(), begins_.end(), member) - begins_.begin() - 1;
}

int64_t Levels::largest_host() const {
  int64_t largest = 0;
  for (int64_t host = 0; host < hosts(); ++host) largest = std::max(largest, host_size(host));
  return largest;
}

MemberCounts Levels::own_part(const MemberCounts& counts) const {
  return {counts.begin() + begins_[host_], counts.begin() + begins_[host_ + 1]};
}

void Levels::collect(const Collective& call, uint64_t step, const at::Tensor& mine, const at::Tensor& into) const {
  if (!inside_) return void(into.view(-1).copy_(mine));
  auto size = host_size(host_);
  MemberCounts sent(size, 0), received(size, leads() ? mine.numel() : 0);
  sent[0] = mine.numel();
  finish([&] {
    return inside_->all_to_all(call.step(step), mine, sent, leads() ? into : at::empty({0}, mine.options()), received);
  });
}

void Levels::reduce(const Collective& call, uint64_t step, const at::Tensor& mine, const at::Tensor& into) const {
  if (!inside_) return into.data_ptr() == mine.data_ptr() ? void() : void(into.copy_(mine));
  MemberCounts counts(host_size(host_), 0);
  counts[0] = mine.numel();
  finish([&] {
    return inside_->reduce_scatter(call.step(step), mine, counts, leads() ? into : at::empty({0}, mine.options()));
  });
}

void Levels::gather(const Collective& call, uint64_t step, const at::Tensor& mine, const at::Tensor& all,
                    const MemberCounts& counts) const {
  if (!inside_) return all.data_ptr() == mine.data_ptr() ? void() : void(all.copy_(mine));
  finish([&] { return inside_->all_gather(call.step(step), mine, all, counts); });
}

void Levels::spread(const Collective& call, uint64_t step, const at::Tensor& buffer, int64_t source) const {
  if (inside_ && buffer.numel()) finish([&] { return inside_->broadcast(call.step(step), buffer, source); });
}

void Levels::deal(const Collective& call, uint64_t step, const at::Tensor& parts, const MemberCounts& counts,
                  const at::Tensor& result) const {
  if (!inside_) return void(result.view(-1).copy_(parts));
  MemberCounts none(counts.size(), 0), received(none);
  received[0] = result.numel();
  finish([&] { return inside_->all_to_all(call.step(step), parts, leads() ? counts : none, result, received); });
}

Wait Levels::trade(const Collective& call, const at::Tensor& send, const MemberCounts& send_counts,
                   const at::Tensor& receive, const MemberCounts& receive_counts) const {
  if (!inside_) return receive.copy_(send), Wait();
  return inside_->all_to_all(call.step(0), send, send_counts, receive, receive_counts);
}

void Levels::wait_for(Messages& messages, int64_t member) const {
  if (inside_) inside_->tell_awaited(line_->members.ranks[member]);
  messages.wait_all(false);
  if (inside_) inside_->tell_awaited(-1);
}

void Levels::give_up(const std::string& why, MemberRecord::State state) const {
  if (inside_) inside_->give_up_because(why, state);
}

}  // namespace intarsia
