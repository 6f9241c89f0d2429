#include "intarsia/comm/message_header.h"

namespace intarsia {

void MessageHeader::describe(const Collective& call) {
  number = call.number;
  fingerprint = call.fingerprint();
  auto op = call.op ? static_cast<uint64_t>(*call.op) + 1 : 0;
  what = static_cast<uint64_t>(call.kind) | op << 8 | static_cast<uint64_t>(call.type) << 16 |
         uint64_t(call.source + 1) << 32;
}

std::string MessageHeader::text() const {
  Collective call;
  call.kind = static_cast<Collective::Kind>(what & 0xff);
  if (what >> 8 & 0xff) call.op = static_cast<ReduceOp>((what >> 8 & 0xff) - 1);
  call.type = static_cast<c10::ScalarType>(what >> 16 & 0xff);
  call.source = static_cast<int64_t>(what >> 32) - 1;
  call.count = static_cast<int64_t>(bytes / c10::elementSize(call.type));
  auto known = call.text();
  return c10::str(known.substr(0, known.rfind(" for ")), " (its collective ", number, ")");
}

}  // namespace intarsia
