#include "intarsia/transport/transport.h"

#include <c10/util/StringUtil.h>

namespace intarsia {

std::string name_of_ranks(const std::vector<int64_t>& ranks) { return c10::Join(",", ranks); }

std::shared_ptr<WatchedLine> LineRequest::watched(const std::string& carrier, const std::string& uid,
                                                  bool levels) const {
  return std::make_shared<WatchedLine>(ranks, position, timeout, carrier, board_store, carrier + "/" + uid, levels);
}

FailureBoard LineRequest::failure_board(const std::string& kind) const {
  return FailureBoard(board_store, "interrupted/" + name_of_ranks(ranks) + "/" + kind);
}

}  // namespace intarsia
