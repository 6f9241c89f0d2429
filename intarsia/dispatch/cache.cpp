#include "intarsia/dispatch/cache.h"

#include "intarsia/redistribute/cost.h"
#include "intarsia/redistribute/cut_dims.h"

namespace intarsia {
namespace {

// On the way of every call: one addition, not a look-up of where the thread keeps it.
__attribute__((tls_model("initial-exec"))) thread_local CacheCounts counts_;

constexpr int64_t kGathers = -0x6174686572;  // no layout, size or number of a key

// Under another policy it is another call.
struct PolicyKey {
  explicit PolicyKey(const CallKey& key) : given(key) {
    if (C10_LIKELY(cut_dims() == CutDims::stay)) return;
    own = key;
    own.push_back(kGathers);
  }
  const CallKey& get() const { return own.empty() ? given : own; }

  const CallKey& given;
  CallKey own;
};

}  // namespace

CacheCounts& cache_counts() { return counts_; }

size_t DecisionCache::Hash::operator()(const CallKey& key) const {
  uint64_t hash = 0x9E3779B97F4A7C15ull;
  for (auto word : key) hash = (hash ^ static_cast<uint64_t>(word)) * 0xff51afd7ed558ccdull, hash ^= hash >> 32;
  return hash;
}

std::shared_ptr<const Decision> DecisionCache::find(const CallKey& key) const {
  std::lock_guard lock(mutex_);
  if (auto now = link_cost_generation(); C10_UNLIKELY(generation_ != now)) {
    decisions_.clear();
    generation_ = now;
  }
  auto found = decisions_.find(PolicyKey(key).get());
  bool known = found != decisions_.end();
  ++(known ? counts_.found : counts_.missed);
  return known ? found->second : nullptr;
}

void DecisionCache::insert(const CallKey& key, std::shared_ptr<const Decision> decision) {
  std::lock_guard lock(mutex_);
  if (decisions_.size() >= kCapacity) decisions_.clear();
  decisions_[PolicyKey(key).get()] = std::move(decision);
}

size_t DecisionCache::size() const {
  std::lock_guard lock(mutex_);
  return decisions_.size();
}

}  // namespace intarsia
