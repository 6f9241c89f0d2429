#include "intarsia/comm/axis.h"

#include <map>
#include <memory>
#include <mutex>
#include <numeric>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "intarsia/comm/reduce.h"
#include "intarsia/comm/run_collective.h"
#include "intarsia/simulation/twins/twins.h"

namespace intarsia {
namespace {

int64_t bytes_of(const Shards& tensors) {
  int64_t most = 0;
  for (auto& t : tensors) most = std::max<int64_t>(most, t.nbytes());
  return most;
}

// The most bytes that any slot exchanges with others: all its counts except its own.
int64_t bytes_with_others(const Line& line, const Counts& counts, int64_t element_size) {
  int64_t most = 0;
  for (size_t slot = 0; slot < counts.size(); ++slot) {
    auto all = std::accumulate(counts[slot].begin(), counts[slot].end(), int64_t{0});
    most = std::max(most, all - counts[slot][line.position[slot]]);
  }
  return most * element_size;
}

// For an axis of one rank: nothing is sent or traced.
void copy_to_self(const Shards& from, const Shards& to) {
  at::NoGradGuard no_grad;
  for (size_t slot = 0; slot < from.size(); ++slot) to[slot].copy_(from[slot]);
}

}  // namespace

const Axis& Axis::of(const DeviceMesh& mesh, int64_t axis) { return of(mesh, std::vector<int64_t>{axis}); }

const Axis& Axis::whole(const DeviceMesh& mesh) {
  std::vector<int64_t> axes(mesh.ndim());
  std::iota(axes.begin(), axes.end(), 0);
  return of(mesh, axes);
}

const Axis& Axis::of(const DeviceMesh& mesh, const std::vector<int64_t>& axes) {
  static auto* mutex = new std::mutex;
  static auto* known = new std::map<std::pair<size_t, std::vector<int64_t>>, std::unique_ptr<const Axis>>;
  std::lock_guard lock(*mutex);
  auto& entry = (*known)[{mesh.hash(), axes}];  // a mesh's hash is its address
  if (!entry) entry.reset(new Axis(mesh, axes));
  return *entry;
}

Axis::Axis(const DeviceMesh& mesh, const std::vector<int64_t>& axes) : engine_(&engine_of(mesh.world())) {
  line_.size = 1;
  line_.mesh = mesh.hash();
  for (auto axis : axes) {
    if (!line_.name.empty()) line_.name += '_';
    line_.name += mesh.axis_name(axis);
    line_.size *= mesh.size(axis);
  }
  for (auto& slot : mesh.slots()) {
    auto& ranks = line_.ranks.emplace_back(mesh.line(slot, axes));
    line_.position.push_back(std::find(ranks.begin(), ranks.end(), slot.rank) - ranks.begin());
  }
}

Shards Axis::all_reduce(const Shards& tensors, ReduceOp op, Wait* wait) const {
  if (tensors.empty()) return {};
  check_reducible("all_reduce", tensors[0].scalar_type(), op);
  if (size() == 1) return made_once(tensors, [](auto& t) { return t.clone(at::MemoryFormat::Contiguous); });
  Shards mine = made_once(tensors, [](auto& t) { return t.contiguous(); }), result;
  for (auto& t : mine) add_room(result, t.sizes(), t.options(), slot_count());
  auto bytes = 2 * bytes_of(tensors) * (size() - 1) / size();
  run_collective(*engine_, line_,
                 {.kind = Collective::all_reduce,
                  .send = mine,
                  .receive = result,
                  .op = op,
                  .bytes_sent = bytes,
                  .bytes_received = bytes},
                 wait);
  return result;
}

void Axis::all_gather(const Shards& mine, const Shards& all, const Counts& counts, Wait* wait) const {
  if (mine.empty()) return;
  if (size() == 1) return copy_to_self(mine, all);
  auto received = bytes_with_others(line_, counts, mine[0].element_size());
  run_collective(*engine_, line_,
                 {.kind = Collective::all_gather,
                  .send = mine,
                  .receive = all,
                  .receive_counts = &counts,
                  .bytes_sent = bytes_of(mine) * (size() - 1),
                  .bytes_received = received},
                 wait);
}

void Axis::all_to_all(const Shards& send, const Counts& send_counts, const Shards& receive,
                      const Counts& receive_counts, Wait* wait, Collective::Kind kind) const {
  if (send.empty()) return;
  if (size() == 1) return copy_to_self(send, receive);
  auto element = send[0].element_size();
  run_collective(*engine_, line_,
                 {.kind = kind,
                  .send = send,
                  .receive = receive,
                  .send_counts = &send_counts,
                  .receive_counts = &receive_counts,
                  .bytes_sent = bytes_with_others(line_, send_counts, element),
                  .bytes_received = bytes_with_others(line_, receive_counts, element)},
                 wait);
}

Shards Axis::reduce_scatter(const Shards& send, const Counts& counts, ReduceOp op, Wait* wait) const {
  if (send.empty()) return {};
  check_reducible("reduce_scatter", send[0].scalar_type(), op);
  Shards result;
  Counts received;  // as many elements from every member
  for (size_t slot = 0; slot < send.size(); ++slot) {
    auto mine = counts[slot][position(slot)];
    add_room(result, {mine}, send[slot].options(), slot_count());
    received.emplace_back(size(), mine);
  }
  if (size() == 1) {
    copy_to_self(send, result);
    return result;
  }
  auto element = send[0].element_size();
  run_collective(*engine_, line_,
                 {.kind = Collective::reduce_scatter,
                  .send = send,
                  .receive = result,
                  .send_counts = &counts,
                  .op = op,
                  .bytes_sent = bytes_with_others(line_, counts, element),
                  .bytes_received = bytes_with_others(line_, received, element)},
                 wait);
  return result;
}

void Axis::broadcast(const Shards& tensors, int64_t source, Wait* wait) const {
  if (tensors.empty() || size() == 1) return;
  auto bytes = bytes_of(tensors);
  run_collective(*engine_, line_,
                 {.kind = Collective::broadcast,
                  .send = tensors,
                  .receive = tensors,
                  .source = source,
                  .bytes_sent = bytes,
                  .bytes_received = bytes},
                 wait);
}

}  // namespace intarsia
