#include "intarsia/redistribute/run/between_meshes.h"

#include <algorithm>
#include <set>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "intarsia/comm/bytes.h"
#include "intarsia/redistribute/run/exchange.h"
#include "intarsia/redistribute/share.h"
#include "intarsia/redistribute/transfers.h"

namespace intarsia {
namespace {

// A mesh of one axis over the ranks of all meshes.
DeviceMesh mesh_of_all(const std::vector<Passage>& passages) {
  std::set<int64_t> ranks;
  for (auto& passage : passages) {
    for (auto* layout : {passage.from, passage.to}) {
      ranks.insert(layout->mesh().ranks().begin(), layout->mesh().ranks().end());
    }
  }
  auto& mesh = passages[0].from->mesh();
  WorldScope world(mesh.world());
  return DeviceMesh(mesh.device_type(), {static_cast<int64_t>(ranks.size())}, {ranks.begin(), ranks.end()}, {"meshes"});
}

// The index of a rank's slot on a mesh, or -1.
int64_t slot_of(const DeviceMesh& mesh, int64_t rank) {
  auto& slots = mesh.slots();
  auto found = std::find_if(slots.begin(), slots.end(), [&](auto& slot) { return slot.rank == rank; });
  return found == slots.end() ? -1 : found - slots.begin();
}

// A scalar is sent as a tensor of one element.
c10::DimVector with_a_dim(c10::ArrayRef<int64_t> shape) {
  return shape.empty() ? c10::DimVector{1} : c10::DimVector(shape);
}

// What one hosted rank sends and receives on all meshes.
struct Desk {
  int64_t rank;
  // All transfers that this rank sends, receives, or keeps; `passage` says of which tensor.
  struct Item {
    size_t passage;
    const Transfer* transfer;
  };
  std::vector<Item> sent, received, kept;
};

using TransferLists = std::vector<std::vector<Transfer>>;  // [passage]

Desk desk_of(int64_t rank, const TransferLists& lists) {
  Desk desk{rank, {}, {}, {}};
  for (size_t i = 0; i < lists.size(); ++i) {
    for (auto& transfer : lists[i]) {
      bool gives = transfer.sender == rank, gets = transfer.receiver == rank;
      if (gives && gets) desk.kept.push_back({i, &transfer});
      if (gives && !gets) desk.sent.push_back({i, &transfer});
      if (gets && !gives) desk.received.push_back({i, &transfer});
    }
  }
  auto by_receiver = [](auto& a, auto& b) { return a.transfer->receiver < b.transfer->receiver; };
  auto by_sender = [](auto& a, auto& b) { return a.transfer->sender < b.transfer->sender; };
  std::stable_sort(desk.sent.begin(), desk.sent.end(), by_receiver);
  std::stable_sort(desk.received.begin(), desk.received.end(), by_sender);
  return desk;
}

at::Tensor piece_of(const Passage& passage, const Transfer& transfer) {
  auto& shard = passage.shards[slot_of(passage.from->mesh(), transfer.sender)];
  return extract(shard.view(with_a_dim(shard.sizes())), transfer.runs);
}

// A new shard of a passage, filled with neutral elements if the rank holds no value of a pending reduction.
at::Tensor new_shard(const Passage& passage, const Slot& slot) {
  auto& coordinate = slot.coordinate;
  auto shape = local_shape(*passage.to, passage.shape, coordinate);
  bool gets =
      std::any_of(passage.groups.begin(), passage.groups.end(), [&](auto& pair) { return pair.to == slot.group; });
  auto shard = gets ? at::empty(shape, passage.options) : at::zeros(shape, passage.options);
  auto& placements = passage.to->placements();
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    if (is_partial(placements[axis])) shard = share_of(shard, collective_op(placements[axis]), coordinate[axis]);
  }
  return shard;
}

// Received bytes as elements of the passage's dtype; a copy if they are not aligned for it.
at::Tensor elements_of(const at::Tensor& bytes, const Passage& passage, c10::ArrayRef<int64_t> shape) {
  auto size = c10::elementSize(c10::typeMetaToScalarType(passage.options.dtype()));
  auto aligned = bytes.storage_offset() % size == 0 ? bytes : bytes.clone();
  return aligned.view(c10::typeMetaToScalarType(passage.options.dtype())).view(shape);
}

// Unpacks what was received. If one piece makes up a shard, and nothing else was received, the piece becomes the shard.
void unpack(const std::vector<Passage>& passages, const Desk& desk, const std::vector<at::Tensor>& pieces,
            std::vector<Shards>& result) {
  for (size_t i = 0; i < passages.size(); ++i) {
    auto& passage = passages[i];
    auto slot = slot_of(passage.to->mesh(), desk.rank);
    if (slot < 0) continue;
    auto& coordinate = passage.to->mesh().slots()[slot].coordinate;
    auto shape = local_shape(*passage.to, passage.shape, coordinate);
    if (pieces.size() == 1 && passages.size() == 1 && desk.kept.empty() && holds_value(*passage.to, coordinate)) {
      auto& runs = desk.received[0].transfer->runs;
      if (count_of(runs) == c10::multiply_integers(shape) && stands_flat(runs, with_a_dim(shape), 0)) {
        result[i][slot] = elements_of(pieces[0], passage, shape);
        continue;
      }
    }
    auto shard = new_shard(passage, passage.to->mesh().slots()[slot]);
    auto target = shard.view(with_a_dim(shape));
    for (auto& item : desk.kept) {
      if (item.passage == i) place(target, piece_of(passage, *item.transfer), item.transfer->runs);
    }
    for (size_t j = 0; j < pieces.size(); ++j) {
      auto& [from, transfer] = desk.received[j];
      if (from == i) place(target, elements_of(pieces[j], passage, shape_of(transfer->runs)), transfer->runs);
    }
    result[i][slot] = shard;
  }
}

}  // namespace

std::vector<Shards> carry_between_meshes(const std::vector<Passage>& passages) {
  if (passages.empty()) return {};
  at::NoGradGuard no_grad;
  auto mesh = mesh_of_all(passages);
  auto& axis = Axis::whole(mesh);
  TransferLists lists;
  std::vector<Shards> result;
  for (auto& passage : passages) {
    auto& list = lists.emplace_back();
    for (auto& [from, to] : passage.groups) {
      for (auto& transfer : transfers(*passage.from, *passage.to, with_a_dim(passage.shape), from, to))
        list.push_back(std::move(transfer));
    }
    result.emplace_back(passage.to->mesh().slots().size());
  }
  auto position = [&](int64_t rank) {
    return std::lower_bound(mesh.ranks().begin(), mesh.ranks().end(), rank) - mesh.ranks().begin();
  };
  std::vector<Desk> desks;
  std::vector<Trade> trades;
  for (auto& slot : mesh.slots()) {
    auto& desk = desks.emplace_back(desk_of(slot.rank, lists));
    auto& trade = trades.emplace_back(axis, passages[0].options.dtype(at::kByte));
    for (auto& [i, transfer] : desk.sent) {
      trade.give(position(transfer->receiver),
                 as_bytes(piece_of(passages[i], *transfer).contiguous().resolve_conj().resolve_neg()));
    }
    for (auto& [i, transfer] : desk.received) {
      auto size = c10::elementSize(c10::typeMetaToScalarType(passages[i].options.dtype()));
      trade.get(position(transfer->sender), {count_of(transfer->runs) * static_cast<int64_t>(size)});
    }
  }
  auto exchanged = exchange(axis, std::move(trades), false, Collective::mesh_to_mesh);
  for (size_t slot = 0; slot < desks.size(); ++slot) unpack(passages, desks[slot], exchanged.pieces(slot), result);
  return result;
}

}  // namespace intarsia
