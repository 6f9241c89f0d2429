#include "intarsia/tensor/cache.h"

#include "intarsia/redistribute/cost.h"

namespace intarsia {

namespace {

// What this thread found last, in a place that follows from the hash: no lock and no search for calls that come again. A
// decision follows from its key and from the costs of links, so one that the cache has dropped is still right.
struct Memo {
  const DecisionCache* cache = nullptr;
  uint64_t generation = 0;
  CallKey key;
  std::shared_ptr<const Decision> decision;
};
constexpr size_t kMemos = 64;
thread_local Memo memos_[kMemos];

}  // namespace

// Four sums side by side, so that no step waits for the one before.
size_t DecisionCache::Hash::operator()(const CallKey& key) const {
  uint64_t sums[4] = {0x9E3779B97F4A7C15ull, 0xBF58476D1CE4E5B9ull, 0x94D049BB133111EBull, 0xD6E8FEB86659FD93ull};
  auto* word = key.data();
  size_t i = 0;
  for (; i + 4 <= key.size(); i += 4) {
    for (size_t lane = 0; lane < 4; ++lane) {
      sums[lane] = (sums[lane] ^ static_cast<uint64_t>(word[i + lane])) * 0xff51afd7ed558ccdull;
      sums[lane] ^= sums[lane] >> 32;
    }
  }
  for (; i < key.size(); ++i) sums[i % 4] = (sums[i % 4] + static_cast<uint64_t>(word[i])) * 0xc4ceb9fe1a85ec53ull;
  auto hash = sums[0] + sums[1] * 3 + sums[2] * 5 + sums[3] * 7;
  return hash ^ hash >> 29;
}

std::shared_ptr<const Decision> DecisionCache::find(const CallKey& key) const {
  auto now = link_cost_generation();
  auto& memo = memos_[(Hash()(key) + reinterpret_cast<size_t>(this) / alignof(DecisionCache)) % kMemos];
  if (memo.cache == this && memo.generation == now && memo.key == key) return memo.decision;
  std::lock_guard lock(mutex_);
  if (C10_UNLIKELY(generation_ != now)) {
    decisions_.clear();
    generation_ = now;
  }
  auto found = decisions_.find(key);
  if (found == decisions_.end()) return nullptr;
  memo = {this, now, key, found->second};
  return found->second;
}

void DecisionCache::insert(const CallKey& key, std::shared_ptr<const Decision> decision) {
  std::lock_guard lock(mutex_);
  if (decisions_.size() >= kCapacity) decisions_.clear();
  decisions_[key] = std::move(decision);
}

size_t DecisionCache::size() const {
  std::lock_guard lock(mutex_);
  return decisions_.size();
}

}  // namespace intarsia
