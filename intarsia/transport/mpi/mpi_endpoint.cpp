#include "intarsia/transport/mpi/mpi_endpoint.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "intarsia/comm/reduce_memory.h"

namespace intarsia {
namespace {

// How many pieces of a line are in transit at a time: one is reduced while others are sent.
constexpr int kPiecesUnderWay = 4;

void reduce_piece(MpiPiece& piece) {
  auto& call = piece.task->call;
  auto& values = piece.values;
  for (size_t j = 1; j < values.size(); ++j) {
    reduce_memory(piece.result, j == 1 ? values[0] : piece.result, values[j], piece.result_bytes, call.type, *call.op);
  }
}

}  // namespace

MpiEndpoint::MpiEndpoint(std::shared_ptr<WatchedLine> line)
    : watched(std::move(line)), farewells(watched->ranks.size()) {}

void MpiEndpoint::start(MpiPort& port, MpiTask& task, bool waits) {
  watched->number(task.call, waits);
  task.write_heads();
  constexpr auto stream = static_cast<int>(MpiStream::heads);
  for (auto& parcel : task.outgoing) {
    task.leaving.add(line->send(parcel.head, parcel.head_bytes(), parcel.member, stream), parcel.member);
  }
  for (auto& parcel : task.incoming) {
    task.arriving.add(line->receive(parcel.head, kLongestHead, parcel.member, stream), parcel.member);
    if (parcel.few() && !parcel.memory) task.pieces[0].values[parcel.member] = behind(parcel.head);
  }
  for (auto& piece : task.pieces) {
    piece.task = &task;
    piece.reduced = piece.values.empty();
    piece.sent_on = !piece.goes_on;
    piece.posted = !piece.travels();
    if (!piece.posted) to_post_.push_back(&piece);
    if (piece.goes_on) to_send_on_.push_back(&piece);
  }
  post_pieces(port);
}

bool MpiEndpoint::move(MpiPort& port, MpiTask& task) {
  bool moved = check_heads(port, task);
  moved |= task.leaving.test(port);
  for (auto i = task.first_open; i < task.pieces.size() && task.pieces[i].posted; ++i) {
    if (!task.pieces[i].finished()) moved |= move(port, task.pieces[i]);
  }
  return moved;
}

bool MpiEndpoint::check_heads(MpiPort& port, MpiTask& task) {
  if (task.heads_checked()) return false;
  if (task.arriving.open && !task.arriving.test(port)) return false;
  auto expected = task.header;
  for (size_t i = 0; i < task.incoming.size(); ++i) {
    auto& parcel = task.incoming[i];
    if (task.arriving.requests[i] || task.seen[i]) continue;
    MessageHeader found;
    std::memcpy(&found, parcel.head, sizeof found);
    expected.bytes = parcel.bytes;
    if (!(found == expected)) throw UnexpectedMessage{parcel.member, found};
    if (parcel.few() && parcel.memory) std::memcpy(parcel.memory, behind(parcel.head), parcel.bytes);
    task.seen[i] = true;
    ++task.checked;
  }
  post_pieces(port);
  return true;
}

bool MpiEndpoint::move(MpiPort& port, MpiPiece& piece) {
  bool moved = piece.coming.test(port);
  moved |= piece.going.test(port);
  if (!piece.reduced && !piece.coming.open && piece.task->heads_checked()) {
    reduce_piece(piece);
    piece.reduced = moved = true;
  }
  moved |= send_on(port);
  if (!piece.finished() || !piece.travels()) return moved;
  if (piece.room) rooms_.emplace_back(piece.room_bytes, std::move(piece.room));
  --under_way_;
  post_pieces(port);
  return true;
}

void MpiEndpoint::post_pieces(MpiPort& port) {
  while (!to_post_.empty() && under_way_ < kPiecesUnderWay && to_post_.front()->task->heads_checked()) {
    auto* piece = to_post_.front();
    to_post_.pop_front();
    ++under_way_;
    post(port, *piece);
  }
}

// Posts receives before sends, so that arriving bytes have a place.
void MpiEndpoint::post(MpiPort& port, MpiPiece& piece) {
  if (piece.room_bytes) piece.room = take_room(piece.room_bytes);
  uint64_t used = 0;
  for (auto& parcel : piece.receives) {
    if (!parcel.memory) {
      parcel.memory = piece.room.get() + used;
      piece.values[parcel.member] = parcel.memory;
      used += parcel.bytes;
    }
    post(port, piece.coming, parcel, MpiStream::bytes, false);
  }
  for (auto& parcel : piece.reduced_receives) post(port, piece.going, parcel, MpiStream::reduced_bytes, false);
  for (auto& parcel : piece.sends) post(port, piece.going, parcel, MpiStream::bytes, true);
  piece.posted = true;
}

// MPI counts in ints.
void MpiEndpoint::post(MpiPort& port, MpiMessages& messages, const MpiParcel& parcel, MpiStream stream, bool send) {
  for (int64_t done = 0, all = parcel.bytes; done < all; done += port.longest) {
    auto length = std::min(port.longest, all - done);
    auto* memory = parcel.memory + done;
    int number = static_cast<int>(stream), member = static_cast<int>(parcel.member);
    messages.add(send ? line->send(memory, length, member, number) : line->receive(memory, length, member, number),
                 member);
  }
}

// In the order of the pieces, whichever is reduced first.
bool MpiEndpoint::send_on(MpiPort& port) {
  bool any = false;
  for (; !to_send_on_.empty() && to_send_on_.front()->reduced; any = true) {
    auto& piece = *to_send_on_.front();
    to_send_on_.pop_front();
    for (int64_t d = 1; d < watched->size(); ++d) {
      auto member = (watched->position + d) % watched->size();
      post(port, piece.going, {member, piece.result, piece.result_bytes}, MpiStream::reduced_bytes, true);
    }
    piece.sent_on = true;
  }
  return any;
}

std::unique_ptr<char[]> MpiEndpoint::take_room(uint64_t bytes) {
  auto fits = std::find_if(rooms_.begin(), rooms_.end(), [&](auto& room) { return room.first >= bytes; });
  if (fits == rooms_.end()) {
    rooms_.clear();  // they have other lengths
    return std::unique_ptr<char[]>(new char[bytes]);
  }
  auto room = std::move(fits->second);
  rooms_.erase(fits);
  return room;
}

void MpiEndpoint::forget(MpiTask& task) {
  auto of_it = [&](MpiPiece* piece) { return piece->task == &task; };
  std::erase_if(to_post_, of_it);
  std::erase_if(to_send_on_, of_it);
}

void MpiEndpoint::read_farewells() {
  Farewell farewell;
  for (int member; (member = line->take(&farewell, sizeof farewell, static_cast<int>(MpiStream::farewells))) >= 0;)
    farewells[member] = farewell;
}

}  // namespace intarsia
