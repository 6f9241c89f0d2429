#include "intarsia/tensor/lent.h"

#include <algorithm>

#include "intarsia/tensor/body.h"

namespace intarsia {

bool Lent::is_returned() const {
  if (further) return false;
  for (auto& value : values) {
    if (value.use_count() > 1 || value.storage().use_count() > 1) return false;
  }
  return true;
}

uint64_t LentViews::version() const { return writes_.load(std::memory_order_relaxed) + count_writes(memory_); }

std::vector<std::unique_ptr<Lent>>::iterator LentViews::find(const Shards& values) {
  return std::find_if(lent_.begin(), lent_.end(), [&](auto& lent) { return lent->values[0].is_same(values[0]); });
}

void LentViews::lend(Lent lent) {
  std::lock_guard lock(mutex_);
  lent.seen = version();
  lent.writes = count_writes(lent.values);
  auto known = find(lent.values);
  if (known == lent_.end()) {
    lent_.push_back(std::make_unique<Lent>(std::move(lent)));
  } else {
    **known = std::move(lent);
  }
}

void LentViews::renew(const Shards& values) {
  std::lock_guard lock(mutex_);
  auto known = find(values);
  if (known != lent_.end()) (*known)->seen = version();
}

bool LentViews::take_back() {
  std::lock_guard lock(mutex_);
  bool changed = false;
  for (auto& lent : lent_) {
    bool carried = lent->further && lent->further->take_back();
    if (lent->further && lent->further->empty()) lent->further = nullptr;
    auto writes = count_writes(lent->values);
    if (lent->writes == writes && !carried) continue;
    auto before = version();
    TORCH_CHECK(lent->seen == before, "[", lent->recipe.op.schema().name(),
                "] the local tensor of this view was written to ",
                "after the tensor that it views had changed. The view is a copy, brought together from other ranks, "
                "and to_local ",
                "showed it as it was. Call to_local again after a write, or write to the view itself.");
    write_through(lent->recipe, lent->values, lent->layout);
    count_write();
    lent->writes = writes;
    for (auto& other : lent_) {
      if (other == lent || (other->seen == before && !overlap(other->recipe, lent->recipe))) other->seen = version();
    }
    changed = true;
  }
  auto is_returned = [](auto& lent) { return lent->is_returned(); };
  lent_.erase(std::remove_if(lent_.begin(), lent_.end(), is_returned), lent_.end());
  return changed;
}

bool LentViews::empty() {
  std::lock_guard lock(mutex_);
  return lent_.empty();
}

void LentViews::settle() {
  std::lock_guard lock(mutex_);
  for (auto& lent : lent_) {
    auto*& layout = body_of(lent->recipe.base).layout;
    layout = layout->with(settled(layout->placements()));
  }
}

}  // namespace intarsia
