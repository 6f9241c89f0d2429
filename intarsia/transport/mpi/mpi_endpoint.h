#pragma once
// One member's end of a line over MPI.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "intarsia/transport/mpi/mpi_task.h"
#include "intarsia/watch/watched_line.h"

namespace intarsia {

// Used under the lock of the progress engine.
struct MpiEndpoint {
  explicit MpiEndpoint(std::shared_ptr<WatchedLine> watched);

  const std::shared_ptr<WatchedLine> watched;
  std::unique_ptr<MpiLine> line;

  std::optional<UnexpectedMessage> unexpected;  // which nobody has explained yet
  Collective confused;                          // the collective that came upon it
  std::vector<Farewell> farewells;              // per member

  bool stuck() const { return watched->error.exists() || unexpected; }

  // Numbers the collective and sends its heads; its bytes follow as there is room for them under way.
  void start(MpiPort& port, MpiTask& task, bool waits);
  // Returns whether anything moved. Throws UnexpectedMessage, MpiFault and what a reduction throws.
  bool move(MpiPort& port, MpiTask& task);
  void forget(MpiTask& task);
  void read_farewells();

 private:
  bool check_heads(MpiPort& port, MpiTask& task);
  bool move(MpiPort& port, MpiPiece& piece);
  void post_pieces(MpiPort& port);
  void post(MpiPort& port, MpiPiece& piece);
  void post(MpiPort& port, MpiMessages& messages, const MpiParcel& parcel, MpiStream stream, bool send);
  bool send_on(MpiPort& port);
  std::unique_ptr<char[]> take_room(uint64_t bytes);

  std::deque<MpiPiece*> to_post_, to_send_on_;                       // in the order of the collectives
  int under_way_ = 0;                                                // pieces
  std::vector<std::pair<uint64_t, std::unique_ptr<char[]>>> rooms_;  // kept for reuse
};

}  // namespace intarsia
