#include "intarsia/comm/agreement.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include "intarsia/comm/agreement_scope.h"

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

}  // namespace

std::vector<std::vector<int64_t>> exchange_numbers(const Axis& axis, const std::vector<int64_t>& mine) {
  TORCH_INTERNAL_ASSERT(axis.slot_count() == 1);
  AgreementScope scope;
  auto count = static_cast<int64_t>(mine.size());
  auto all = at::empty({axis.size() * count}, at::kLong);
  axis.all_gather({at::tensor(mine, at::kLong)}, {all}, {std::vector<int64_t>(axis.size(), count)});
  std::vector<std::vector<int64_t>> numbers;
  auto* row = all.const_data_ptr<int64_t>();
  for (int64_t j = 0; j < axis.size(); ++j, row += count) numbers.emplace_back(row, row + count);
  return numbers;
}

std::vector<int64_t> exchange_numbers(const Axis& axis, int64_t mine) {
  std::vector<int64_t> numbers;
  for (auto& row : exchange_numbers(axis, std::vector<int64_t>{mine})) numbers.push_back(row[0]);
  return numbers;
}

// The first message of a member has the length of its text and, if it is short, the text. Long ones follow in a second
// message.
std::vector<std::string> exchange_texts(const Axis& axis, const std::string& mine) {
  TORCH_INTERNAL_ASSERT(axis.slot_count() == 1);
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
