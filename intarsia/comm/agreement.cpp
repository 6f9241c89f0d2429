#include "intarsia/comm/agreement.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include <ATen/ATen.h>

#include "intarsia/comm/agreement_scope.h"
#include "intarsia/comm/trace.h"

namespace intarsia {
namespace {

constexpr int64_t kShortText = 248;  // bytes that are sent with the lengths

// The texts of all members, one after the other.
std::string gather_bytes(const Axis& axis, const std::string& mine, const std::vector<int64_t>& lengths) {
  auto own = at::empty({static_cast<int64_t>(mine.size())}, at::kByte);
  auto all = at::empty({std::accumulate(lengths.begin(), lengths.end(), int64_t{0})}, at::kByte);
  if (!mine.empty()) std::memcpy(own.mutable_data_ptr(), mine.data(), mine.size());
  axis.all_gather({own}, {all}, {lengths});
  return std::string(reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>()), all.numel());
}

bool travels(const Axis& axis) { return axis.size() > 1 && axis.slot_count() == 1; }

// A simulation's trace has the agreements of a real job.
void record_simulated(const Axis& axis) {
  if (axis.size() > 1 && recording()) record(axis.world(), AgreementEvent{CauseScope::op(), axis.name()});
}

}  // namespace

NumbersExchange::NumbersExchange(const Axis& axis, const std::vector<int64_t>& mine)
    : members_(axis.size()), count_(static_cast<int64_t>(mine.size())) {
  if (!travels(axis)) {
    record_simulated(axis);
    same_ = mine;
    return;
  }
  AgreementScope scope;
  mine_ = at::tensor(mine, at::kLong);
  all_ = at::empty({members_ * count_}, at::kLong);
  axis.all_gather({mine_}, {all_}, {std::vector<int64_t>(members_, count_)}, &wait_);
}

std::vector<std::vector<int64_t>> NumbersExchange::finish() {
  if (!all_.defined()) return std::vector<std::vector<int64_t>>(members_, same_);
  if (wait_) wait_();
  wait_ = nullptr;
  std::vector<std::vector<int64_t>> numbers;
  auto* row = all_.const_data_ptr<int64_t>();
  for (int64_t j = 0; j < members_; ++j, row += count_) numbers.emplace_back(row, row + count_);
  return numbers;
}

std::vector<std::vector<int64_t>> exchange_numbers(const Axis& axis, const std::vector<int64_t>& mine) {
  return NumbersExchange(axis, mine).finish();
}

std::vector<int64_t> exchange_numbers(const Axis& axis, int64_t mine) {
  std::vector<int64_t> numbers;
  for (auto& row : exchange_numbers(axis, std::vector<int64_t>{mine})) numbers.push_back(row[0]);
  return numbers;
}

int64_t exchange_max(const Axis& axis, int64_t mine) {
  if (!travels(axis)) return record_simulated(axis), mine;
  AgreementScope scope;
  return axis.all_reduce({at::scalar_tensor(mine, at::kLong)}, ReduceOp::max)[0].item<int64_t>();
}

// The first message of a member has the length of its text and, if that is short, the text. Long ones follow in a
// second message.
std::vector<std::string> exchange_texts(const Axis& axis, const std::string& mine) {
  if (!travels(axis)) return record_simulated(axis), std::vector<std::string>(axis.size(), mine);
  AgreementScope scope;
  auto length = static_cast<int64_t>(mine.size()), members = axis.size();
  bool is_short = length <= kShortText;
  std::string first(sizeof length + kShortText, '\0');
  std::memcpy(first.data(), &length, sizeof length);
  if (is_short) mine.copy(first.data() + sizeof length, length);
  auto firsts = gather_bytes(axis, first, std::vector<int64_t>(members, first.size()));
  std::vector<int64_t> lengths(members), left(members, 0);
  for (int64_t j = 0; j < members; ++j) {
    std::memcpy(&lengths[j], firsts.data() + j * first.size(), sizeof length);
    if (lengths[j] > kShortText) left[j] = lengths[j];
  }
  bool all_short = *std::max_element(lengths.begin(), lengths.end()) <= kShortText;
  auto rest = all_short ? "" : gather_bytes(axis, is_short ? "" : mine, left);
  std::vector<std::string> texts;
  for (int64_t j = 0, next = 0; j < members; next += left[j++]) {
    texts.push_back(left[j] ? rest.substr(next, left[j]) : firsts.substr(j * first.size() + sizeof length, lengths[j]));
  }
  return texts;
}

}  // namespace intarsia
