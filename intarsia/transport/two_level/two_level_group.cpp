#include "intarsia/transport/two_level/two_level_group.h"

#include <mutex>
#include <numeric>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "intarsia/comm/reduce.h"
#include "intarsia/comm/worker.h"
#include "intarsia/transport/gloo/direct_group.h"
#include "intarsia/transport/two_level/chain.h"
#include "intarsia/watch/flight_recorder.h"

namespace intarsia {
namespace {

// Up to this size leaders send each other the values of all their members: one exchange, where a running sum takes one
// per host.
constexpr int64_t kAllValuesBytes = 128 << 10;  // that a leader sends
// Up to this size a reduce_scatter over more than two hosts is fastest between all ranks at once: one exchange. Over
// two hosts, a running sum takes no more.
constexpr int64_t kFlatScatterBytes = 64 << 10;  // that a rank brings
// A broadcast is passed on inside a host in pieces of this size.
constexpr int64_t kBroadcastBytes = 1 << 20;

at::Tensor flattened(const at::Tensor& t) { return t.dim() == 1 ? t : t.view(-1); }

MemberCounts offsets_of(const MemberCounts& counts) {
  MemberCounts offsets(counts.size() + 1, 0);
  std::inclusive_scan(counts.begin(), counts.end(), offsets.begin() + 1);
  return offsets;
}

void gather_in_levels(const Levels& levels, const Collective& call, const at::Tensor& mine, const at::Tensor& all,
                      const MemberCounts& counts) {
  auto offsets = offsets_of(counts);
  auto slice = [&](int64_t host) {
    auto begin = offsets[levels.leader(host)], end = offsets[levels.leader(host + 1)];
    return all.narrow(0, begin, end - begin);
  };
  auto hosts = levels.hosts(), own = levels.host();
  std::vector<std::unique_ptr<Messages>> incoming(hosts);
  for (int64_t host = 0; levels.leads() && host < hosts; ++host) {
    if (host == own || !slice(host).numel()) continue;
    incoming[host] = std::make_unique<Messages>(levels.members(), call);
    incoming[host]->receive(slice(host), levels.leader(host));
  }
  levels.gather(call, 0, mine, slice(own), levels.own_part(counts));
  Messages outgoing(levels.members(), call);
  for (int64_t d = 1; levels.leads() && d < hosts && slice(own).numel(); ++d)
    outgoing.send(slice(own), levels.leader((own + d) % hosts));
  for (int64_t d = 1; d < hosts; ++d) {
    auto host = (own + hosts - d) % hosts;
    if (incoming[host]) levels.wait_for(*incoming[host], levels.leader(host));
    levels.spread(call, d, slice(host));
  }
  if (levels.leads()) levels.wait_for(outgoing, levels.leader((own + 1) % hosts));
}

// Every leader adds up the values of all ranks.
void reduce_all_values(const Levels& levels, const Collective& call, const at::Tensor& mine, const at::Tensor& result) {
  auto own = levels.host(), n = levels.leader(levels.hosts()), length = mine.numel();
  if (!length) return;
  if (!levels.leads()) return levels.collect(call, 0, mine, {}), levels.spread(call, 1, result);
  auto values = at::empty({n * length}, mine.options());
  auto slice = [&](int64_t host) {
    return values.narrow(0, levels.leader(host) * length, levels.host_size(host) * length);
  };
  Messages incoming(levels.members(), call), outgoing(levels.members(), call);
  auto each_other = [&](auto action) {
    for (int64_t d = 1; d < levels.hosts(); ++d) action((own + d) % levels.hosts());
  };
  each_other([&](int64_t host) { incoming.receive(slice(host), levels.leader(host)); });
  levels.collect(call, 0, mine, slice(own));
  each_other([&](int64_t host) { outgoing.send(slice(own), levels.leader(host)); });
  levels.wait_for(incoming, levels.leader((own + 1) % levels.hosts()));
  reduce_parts(values, n, result, *call.op);
  levels.spread(call, 1, result);
  levels.wait_for(outgoing, levels.leader((own + 1) % levels.hosts()));
}

void reduce_scatter_in_levels(const Levels& levels, const Collective& call, const at::Tensor& send,
                              const MemberCounts& counts, const at::Tensor& result) {
  auto offsets = offsets_of(counts);
  std::vector<int64_t> of_hosts;
  for (int64_t host = 0; host < levels.hosts(); ++host)
    of_hosts.push_back(offsets[levels.leader(host + 1)] - offsets[levels.leader(host)]);
  auto sums = at::empty({levels.leads() ? of_hosts[levels.host()] : 0}, send.options());
  reduce_along_chain(levels, call, send, cut_for_chain(send.element_size(), send.numel(), of_hosts), sums,
                     offsets[levels.leader(levels.host())]);
  levels.deal(call, ~uint64_t{0}, sums, levels.own_part(counts), result);
}

// The source sends to the leaders of other hosts, which pass it on inside while more arrives.
void broadcast_in_levels(const Levels& levels, const Collective& call, const at::Tensor& buffer, int64_t source) {
  auto length = std::max<int64_t>(kBroadcastBytes / buffer.element_size(), 1),
       count = (buffer.numel() + length - 1) / length;
  auto piece = [&](int64_t i) { return buffer.narrow(0, i * length, std::min(length, buffer.numel() - i * length)); };
  auto home = levels.host_of(source);
  std::vector<std::unique_ptr<Messages>> mail(count);
  for (int64_t i = 0; i < count; ++i) {
    mail[i] = std::make_unique<Messages>(levels.members(), call, i);
    for (int64_t host = 0; levels.me() == source && host < levels.hosts(); ++host) {
      if (host != home) mail[i]->send(piece(i), levels.leader(host));
    }
    if (levels.host() != home && levels.leads()) mail[i]->receive(piece(i), source);
  }
  if (levels.host() == home) levels.spread(call, 0, buffer, source - levels.leader(home));
  for (int64_t i = 0; i < count; ++i) {
    levels.wait_for(*mail[i], levels.me() == source ? levels.leader(home == 0) : source);
    if (levels.host() != home) levels.spread(call, i, piece(i));
  }
}

using SharedLevels = std::shared_ptr<const Levels>;  // collectives in progress may outlive the group

void guarded(const Levels& levels, const Collective& call, c10::function_ref<void()> work) {
  try {
    levels.guard(work);
  } catch (const std::exception&) {
    end_entry(call, false);
    throw;
  }
}

// Every byte crosses a cable only once anyway, so each rank sends its own.
Wait trade_in_levels(const Levels& levels, const Collective& call, const at::Tensor& send,
                     const MemberCounts& send_counts, const at::Tensor& receive, const MemberCounts& receive_counts) {
  auto from = offsets_of(send_counts), to = offsets_of(receive_counts);
  auto n = static_cast<int64_t>(send_counts.size()), me = levels.me();
  auto begin = levels.leader(levels.host()), end = levels.leader(levels.host() + 1);
  auto messages = std::make_shared<Messages>(levels.members(), call);
  auto each_outside = [&](int64_t direction, auto action) {
    for (int64_t d = 1; d < n; ++d) {
      auto j = (me + direction * d + n) % n;
      if (levels.host_of(j) != levels.host()) action(j);
    }
  };
  each_outside(-1, [&](int64_t j) {
    if (receive_counts[j]) messages->receive(receive.narrow(0, to[j], receive_counts[j]), j);
  });
  each_outside(+1, [&](int64_t j) {
    if (send_counts[j]) messages->send(send.narrow(0, from[j], send_counts[j]), j);
  });
  auto inside = levels.trade(call, send.narrow(0, from[begin], from[end] - from[begin]), levels.own_part(send_counts),
                             receive.narrow(0, to[begin], to[end] - to[begin]), levels.own_part(receive_counts));
  return [messages, inside] {
    if (inside) inside();
    messages->wait_all();
  };
}

class TwoLevelGroup final : public Group {
 public:
  explicit TwoLevelGroup(Levels levels)
      : levels_(std::make_shared<const Levels>(std::move(levels))),
        between_all_(make_direct_group(levels_->members())) {}

  const char* carrier() const override { return kTwoLevels; }
  bool reduces_in_place() const override { return true; }

  Wait all_reduce(Collective call, const at::Tensor& mine, const at::Tensor& result, bool later) const override {
    bool exchange = static_cast<int64_t>(mine.nbytes()) * levels_->largest_host() <= kAllValuesBytes;
    return run(
        std::move(call), later, mine,
        [levels = levels_, exchange, mine = flattened(mine), result = flattened(result)](const Collective& call) {
          if (exchange) return reduce_all_values(*levels, call, mine, result);
          reduce_along_chain(*levels, call, mine, cut_for_chain(mine.element_size(), mine.numel(), {}), result, 0);
        });
  }

  Wait all_gather(Collective call, const at::Tensor& mine, const at::Tensor& all,
                  const MemberCounts& counts) const override {
    return run(std::move(call), true, mine,
               [levels = levels_, mine = flattened(mine), all = flattened(all), counts](const Collective& call) {
                 gather_in_levels(*levels, call, mine, all, counts);
               });
  }

  Wait reduce_scatter(Collective call, const at::Tensor& send, const MemberCounts& counts,
                      const at::Tensor& result) const override {
    if (levels_->hosts() > 2 && static_cast<int64_t>(send.nbytes()) <= kFlatScatterBytes) {
      Wait wait;
      guarded(*levels_, call, [&] { wait = between_all_->reduce_scatter(call, send, counts, result); });
      return [levels = levels_, call, wait] {
        if (wait) guarded(*levels, call, wait);
      };
    }
    return run(std::move(call), true, send,
               [levels = levels_, send = flattened(send), result = flattened(result), counts](const Collective& call) {
                 reduce_scatter_in_levels(*levels, call, send, counts, result);
               });
  }

  Wait broadcast(Collective call, const at::Tensor& buffer, int64_t source) const override {
    return run(std::move(call), true, buffer,
               [levels = levels_, buffer = flattened(buffer), source](const Collective& call) {
                 broadcast_in_levels(*levels, call, buffer, source);
               });
  }

  Wait all_to_all(Collective call, const at::Tensor& send, const MemberCounts& send_counts, const at::Tensor& receive,
                  const MemberCounts& receive_counts) const override {
    check(send);
    std::lock_guard order(order_);
    levels_->line().number(call);
    auto begin = [levels = levels_, call, send = flattened(send), receive = flattened(receive), send_counts,
                  receive_counts] {
      return trade_in_levels(*levels, call, send, send_counts, receive, receive_counts);
    };
    if (!worker_.idle()) return in_thread(call, [begin] { begin()(); });  // steps inside a host keep their order
    Wait wait;
    guarded(*levels_, call, [&] { wait = begin(); });
    return [levels = levels_, call, wait] { guarded(*levels, call, wait); };
  }

 private:
  void check(const at::Tensor& buffer) const {
    TORCH_CHECK_VALUE(buffer.is_cpu(), "shared memory and gloo carry tensors in CPU memory, not on ", buffer.device(),
                      ". Adopt a process group of that device with mesh_from_group.");
    levels_->line().error.check();
  }

  template <class Work>
  Wait in_thread(const Collective& call, Work work) const {
    auto job = [levels = levels_, call, work] {
      at::NoGradGuard no_grad;  // the thread's own
      guarded(*levels, call, work);
    };
    return worker_.run(job, [levels = levels_] { levels->interrupt(); });
  }

  // A collective of several steps, run in the order of the calls: in a separate thread, unless the caller waits for it
  // at once and nothing is before it.
  template <class Work>
  Wait run(Collective call, bool later, const at::Tensor& mine, Work steps) const {
    check(mine);
    std::unique_lock order(order_);
    levels_->line().number(call);
    auto work = [call, steps] {
      steps(call);
      end_entry(call);
    };
    if (!later && worker_.claim()) {
      order.unlock();
      struct Claim {
        Worker& worker;
        ~Claim() { worker.release(); }
      } claim{worker_};
      at::NoGradGuard no_grad;
      wait_for_entry(call);
      return guarded(*levels_, call, work), Wait();
    }
    auto wait = in_thread(call, work);
    order.unlock();
    if (later) return [wait, call] { wait_for_entry(call), wait(); };
    wait_for_entry(call);
    return wait(), Wait();
  }

  SharedLevels levels_;
  std::unique_ptr<Group> between_all_;
  mutable std::mutex order_;  // of the steps inside a host
  mutable Worker worker_;     // destroyed first: its functions use the others
};

}  // namespace

std::unique_ptr<Group> make_two_level_group(Levels levels) {
  return std::make_unique<TwoLevelGroup>(std::move(levels));
}

}  // namespace intarsia
