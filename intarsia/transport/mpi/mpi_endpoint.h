#pragma once
// One member's end of a line over MPI.

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "intarsia/transport/mpi/mpi_task.h"
#include "intarsia/watch/collective_board.h"
#include "intarsia/watch/failure_board.h"

namespace intarsia {

// Why a member has left the line, for the others.
enum class MpiFarewell : uint64_t { none, failed, interrupted };

// Used under the lock of the progress engine.
struct MpiEndpoint {
  MpiEndpoint(std::vector<int64_t> ranks, int64_t position, std::chrono::milliseconds timeout,
              std::shared_ptr<FailureBoard> failures, std::shared_ptr<CollectiveBoard> board);

  const std::vector<int64_t> ranks;  // of the world, in the order of the line
  const int64_t position;            // our own
  const std::chrono::milliseconds timeout;
  const std::shared_ptr<FailureBoard> failures;  // null if there is no store
  const std::shared_ptr<CollectiveBoard> board;  // the same
  std::unique_ptr<MpiLine> line;

  uint64_t next_number = 0;
  History history;
  bool failed = false;                          // fails at once from then on
  std::string why;                              // the text of its error
  std::optional<UnexpectedMessage> unexpected;  // not explained yet
  Collective confused;                          // the collective that met it
  std::vector<MpiFarewell> farewells;           // per member

  int64_t rank() const { return ranks[position]; }
  bool stuck() const { return failed || unexpected; }
  void check() const;

  // Numbers the collective and sends its heads; its bytes follow when there is room for them in transit.
  void start(MpiPort& port, MpiTask& task);
  // Returns whether anything moved. Throws UnexpectedMessage, MpiFault and the errors of a reduction.
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
