#include "intarsia/transport/transport.h"

#include <c10/util/StringUtil.h>

namespace intarsia {

std::string name_of_ranks(const std::vector<int64_t>& ranks) { return c10::Join(",", ranks); }

std::shared_ptr<FailureBoard> LineRequest::failure_board(const std::string& kind) const {
  if (!board_store) return nullptr;
  return std::make_shared<FailureBoard>(board_store, "interrupted/" + name_of_ranks(ranks) + "/" + kind);
}

std::shared_ptr<CollectiveBoard> LineRequest::collective_board(const std::string& kind) const {
  return std::make_shared<CollectiveBoard>(board_store, name_of_ranks(ranks) + "/" + kind, ranks, position);
}

}  // namespace intarsia
