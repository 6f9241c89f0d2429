#pragma once
// Exchanges pieces of tensors between ranks: packs them into one flat buffer per slot, sends exactly these in one
// collective, and unpacks them into their shapes.

#include <memory>
#include <vector>

#include <c10/util/DimVector.h>

#include "intarsia/comm/axis.h"

namespace intarsia {

struct Exchanged;

// What one slot sends to the members of its line, itself included, and receives from them. Call give and get with
// members in ascending order, once per piece: the pieces for one member arrive in the order in which they are given.
class Trade {
 public:
  Trade(const Axis& axis, const at::TensorOptions& options);  // of the pieces sent and received

  void give(int64_t member, at::Tensor piece);  // an undefined piece is not sent
  void get(int64_t member, c10::ArrayRef<int64_t> shape);

 private:
  friend Exchanged exchange(const Axis&, std::vector<Trade>, bool, Collective::Kind);
  at::TensorOptions options_;
  std::vector<at::Tensor> given_;
  std::vector<c10::DimVector> shapes_;              // of what it receives
  std::vector<int64_t> given_counts_, got_counts_;  // per member, in elements
  int64_t last_given_ = 0, last_got_ = 0;
};

// The shapes of the pieces that a slot receives. Slots may share the list: the slots of a line are many, and all
// receive the same.
using PieceShapes = std::shared_ptr<const std::vector<c10::DimVector>>;

// What every slot received.
struct Exchanged {
  Shards received;                  // all of it, flat, one piece after the other
  std::vector<PieceShapes> shapes;  // per slot
  Wait wait;                        // empty if there is nothing to wait for

  // The pieces of a slot, in the order of its calls of get, as views of `received`. May be called before the wait.
  std::vector<at::Tensor> pieces(size_t slot) const;
};

// One all-to-all, traced as `kind`. One trade per slot; what one member gives another, that one gets. With `later` it
// is only begun: the pieces given are copied, and may change before the wait.
Exchanged exchange(const Axis& axis, std::vector<Trade> trades, bool later = false,
                   Collective::Kind kind = Collective::all_to_all);

// One all-gather: every slot sends `mine[slot]` to all, and receives a piece of (*shapes[slot])[member] from each.
// `later` as above.
Exchanged gather(const Axis& axis, const Shards& mine, std::vector<PieceShapes> shapes, bool later = false);

// The pieces as one flat buffer of values, in order: a view if they are contiguous in memory in that order, else a
// copy.
at::Tensor packed(c10::ArrayRef<at::Tensor> pieces, const at::TensorOptions& options);

}  // namespace intarsia
