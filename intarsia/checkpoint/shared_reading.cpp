#include "intarsia/checkpoint/shared_reading.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "intarsia/checkpoint/byte_runs.h"
#include "intarsia/checkpoint/checksum.h"
#include "intarsia/checkpoint/gather_text.h"
#include "intarsia/checkpoint/slabs.h"
#include "intarsia/comm/bytes.h"
#include "intarsia/comm/trace.h"
#include "intarsia/redistribute/run/exchange.h"
#include "intarsia/tensor/body.h"

namespace intarsia::checkpoint {
namespace {

constexpr int64_t kSlabBytes = 4 << 20;      // that a rank reads in a round,
constexpr int64_t kReceivedBytes = 8 << 20;  // and that it receives: a round ends when a rank has this much

int64_t element_bytes(const IndexedTensor& tensor) { return c10::elementSize(tensor.dtype); }

// The bytes that a rank reading alone reads of a piece: whole blocks, and all of them if runs are close.
int64_t bytes_alone(const StoredPiece& piece, const Box& part, int64_t element) {
  ByteRuns runs(piece.box, part, element);
  auto first = runs.begin(0) / kChecksumBlock, last = block_count(runs.begin(runs.count() - 1) + runs.length());
  auto all = std::min(last * kChecksumBlock, piece.box.count() * element) - first * kChecksumBlock;
  return std::min(all, runs.count() * (runs.length() + kChecksumBlock));
}

// The boxes that the member at each position of a mesh wants.
std::vector<std::vector<HeldBox>> boxes_by_position(const Layout& layout, c10::ArrayRef<int64_t> shape) {
  std::vector<std::vector<HeldBox>> result;
  for (int64_t position = 0; position < layout.mesh().size(); ++position)
    result.push_back(boxes_of(layout, shape, layout.mesh().coordinate_at(position)));
  return result;
}

// A part of a stored piece that one member reads.
struct SharedSlab {
  size_t target;
  Box box;
};
using SharedRound = std::vector<std::vector<SharedSlab>>;  // [position]

// A part of a slab that a member wants.
struct SharedPiece {
  const SharedSlab* slab;
  Box part;
  const HeldBox* wanted;
};

class JointRead {
 public:
  JointRead(const DeviceMesh& mesh, const std::vector<SharedTarget>& targets)
      : axis_(Axis::whole(mesh)), targets_(targets) {
    for (auto& target : targets) wanted_.push_back(boxes_by_position(layout_of(target.tensor), target.tensor.sizes()));
    plan();
  }

  void run(PieceReader& reader, Progress& progress, std::string& error) {
    for (auto& round : rounds_) {
      std::vector<Trade> trades;
      for (size_t slot = 0; slot < axis_.slot_count(); ++slot) {
        auto& trade = trades.emplace_back(axis_, at::TensorOptions(at::kByte));
        give(round, axis_.position(slot), read(round[axis_.position(slot)], reader, progress, error), trade);
        for (int64_t sender = 0; sender < axis_.size(); ++sender) {
          for (auto& piece : pieces(round, sender, axis_.position(slot)))
            trade.get(sender, {piece.part.count() * element_bytes(*targets_[piece.slab->target].stored)});
        }
      }
      auto exchanged = exchange(axis_, std::move(trades), false, Collective::scatter);
      for (size_t slot = 0; slot < axis_.slot_count(); ++slot) place(round, slot, exchanged.pieces(slot));
    }
  }

 private:
  // The first member reads slabs until it has enough, then the next; see Note [Whole blocks].
  void plan() {
    int64_t position = 0, read = 0;
    std::vector<int64_t> received(axis_.size(), 0);
    for (size_t i = 0; i < targets_.size(); ++i) {
      auto& stored = *targets_[i].stored;
      auto element = element_bytes(stored);
      for (auto& piece : stored.pieces) {
        for_each_slab(piece.box, kSlabBytes / element, [&](const Box& slab) {
          bool full = *std::max_element(received.begin(), received.end()) >= kReceivedBytes;
          if (full || position == axis_.size()) position = read = 0, received.assign(axis_.size(), 0);
          if (rounds_.empty() || (position == 0 && read == 0)) rounds_.emplace_back(axis_.size());
          rounds_.back()[position].push_back({i, slab});
          for (int64_t other = 0; other < axis_.size(); ++other) {
            for (auto& held : wanted_[i][other]) {
              if (auto part = overlap(slab, held.box)) received[other] += part->count() * element;
            }
          }
          read += slab.count() * element;
          if (read >= kSlabBytes) ++position, read = 0;
        });
      }
    }
  }

  // In the order in which both sides list them.
  std::vector<SharedPiece> pieces(const SharedRound& round, int64_t sender, int64_t receiver) const {
    std::vector<SharedPiece> result;
    for (auto& slab : round[sender]) {
      for (auto& held : wanted_[slab.target][receiver]) {
        if (auto part = overlap(slab.box, held.box)) result.push_back({&slab, *part, &held});
      }
    }
    return result;
  }

  std::vector<at::Tensor> read(const std::vector<SharedSlab>& slabs, PieceReader& reader, Progress& progress,
                               std::string& error) const {
    std::vector<at::Tensor> result;
    for (auto& slab : slabs) {
      auto& target = targets_[slab.target];
      auto& values = result.emplace_back(at::empty(slab.box.shape, target.stored->dtype));
      try {
        if (error.empty()) reader.read(*target.stored, slab.box, values, progress);
      } catch (const std::exception& failure) {
        error = c10::str("tensor \"", target.name, "\": ", text_of_error(failure));
      }
    }
    return result;
  }

  void give(const SharedRound& round, int64_t sender, const std::vector<at::Tensor>& values, Trade& trade) const {
    for (int64_t receiver = 0; receiver < axis_.size(); ++receiver) {
      for (auto& piece : pieces(round, sender, receiver)) {
        auto& slab = values[piece.slab - round[sender].data()];
        trade.give(receiver, as_bytes(view_in_box(slab, piece.slab->box, piece.part).contiguous()));
      }
    }
  }

  void place(const SharedRound& round, size_t slot, const std::vector<at::Tensor>& came) const {
    size_t next = 0;
    for (int64_t sender = 0; sender < axis_.size(); ++sender) {
      for (auto& piece : pieces(round, sender, axis_.position(slot))) {
        auto& target = targets_[piece.slab->target];
        auto bytes = came[next++];
        if (bytes.storage_offset() % element_bytes(*target.stored)) bytes = bytes.clone();
        auto& shard = body_of(target.tensor).shards()[slot];
        auto held = view_of_box(shard, piece.wanted->local, piece.wanted->box.shape);
        view_in_box(held, piece.wanted->box, piece.part).copy_(bytes.view(target.stored->dtype).view(piece.part.shape));
      }
    }
  }

  const Axis& axis_;
  const std::vector<SharedTarget>& targets_;
  std::vector<std::vector<std::vector<HeldBox>>> wanted_;  // [target][position]
  std::vector<SharedRound> rounds_;
};

}  // namespace

bool is_read_jointly(const IndexedTensor& stored, const Layout& layout) {
  if (layout.mesh().size() == 1 || layout.is_replicated()) return false;
  int64_t wanted = 0, alone = 0;
  for (auto& boxes : boxes_by_position(layout, stored.shape)) {
    for (auto& held : boxes) {
      for (auto& piece : stored.pieces) {
        if (piece.checksums.empty()) return false;  // nothing to check: each reads what it wants
        auto part = overlap(piece.box, held.box);
        if (!part) continue;
        wanted += part->count() * element_bytes(stored);
        alone += bytes_alone(piece, *part, element_bytes(stored));
      }
    }
  }
  return 2 * alone > 3 * wanted;
}

std::string joint_text(const SharedTarget& target) {
  return c10::str("\"", target.name, "\" ", target.stored->form(), " as ", str(layout_of(target.tensor)));
}

void read_jointly(const DeviceMesh& mesh, const std::vector<SharedTarget>& targets, PieceReader& reader,
                  Progress& progress, std::string& error) {
  if (mesh.slots().empty()) return;
  CauseScope cause("checkpoint", false);
  JointRead(mesh, targets).run(reader, progress, error);
}

}  // namespace intarsia::checkpoint
