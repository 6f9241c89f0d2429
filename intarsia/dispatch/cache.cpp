#include "intarsia/dispatch/cache.h"

#include <atomic>

#include "intarsia/redistribute/cost.h"
#include "intarsia/rules/advised.h"

namespace intarsia {
namespace {

// Every call increments it: initial-exec makes that one addition, without a look-up of the thread's block.
__attribute__((tls_model("initial-exec"))) thread_local CacheCounts counts_;

std::atomic<uint64_t> forgotten_{0};  // how often

constexpr int64_t kGuided = -0x6775696465;  // differs from any layout, size or number in a key

// A call under a guide has another key.
struct GuidedKey {
  explicit GuidedKey(const CallKey& key) : given(key) {
    auto guide = current_guide_number();
    if (C10_LIKELY(guide == 0)) return;
    own = key;
    own.push_back(kGuided);
    own.push_back(guide);
  }
  const CallKey& get() const { return own.empty() ? given : own; }

  const CallKey& given;
  CallKey own;
};

}  // namespace

void forget_decisions() { forgotten_.fetch_add(1, std::memory_order_relaxed); }

CacheCounts& cache_counts() { return counts_; }

size_t DecisionCache::Hash::operator()(const CallKey& key) const {
  uint64_t hash = 0x9E3779B97F4A7C15ull;
  for (auto word : key) hash = (hash ^ static_cast<uint64_t>(word)) * 0xff51afd7ed558ccdull, hash ^= hash >> 32;
  return hash;
}

std::shared_ptr<const Decision> DecisionCache::find(const CallKey& key) const {
  std::lock_guard lock(mutex_);
  if (auto now = link_cost_generation() + forgotten_.load(std::memory_order_relaxed);
      C10_UNLIKELY(generation_ != now)) {
    decisions_.clear();
    generation_ = now;
  }
  auto found = decisions_.find(GuidedKey(key).get());
  bool known = found != decisions_.end();
  ++(known ? counts_.found : counts_.missed);
  return known ? found->second : nullptr;
}

void DecisionCache::insert(const CallKey& key, std::shared_ptr<const Decision> decision) {
  std::lock_guard lock(mutex_);
  if (decisions_.size() >= kCapacity) decisions_.clear();
  decisions_[GuidedKey(key).get()] = std::move(decision);
}

size_t DecisionCache::size() const {
  std::lock_guard lock(mutex_);
  return decisions_.size();
}

}  // namespace intarsia
