#pragma once
// The calls that this thread has made on each mesh, and the origin of a tensor: the call that made it.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <c10/util/ArrayRef.h>

#include "intarsia/core/layout.h"

namespace intarsia {

// Note [Origins]
// A fingerprint says what a collective does, not with which tensor. If one rank skips a full_tensor and continues with
// the next one of the same form, all ranks run equal collectives, and would combine different tensors. So a tensor has
// an origin: a hash of the call that made it or last wrote to it, and of the origins of that call's inputs. The origin
// of the tensor that a collective moves is part of the fingerprint. In a correct program it is the same on all ranks,
// because
// - the origin of a tensor made of plain ones includes how many of its form this thread has made on its mesh, unless
// distribute_tensor makes it of this rank's data, which a rank may do alone. If one rank alone makes some of another
// form, or fails to, that does not matter;
// - numbers are part of it. A number that differs between ranks must not meet a distributed tensor, which is one tensor
// for all of them;
// - ops that keep values (detach, clone, copy_, a redistribution) pass the origin on. Whether autograd clones a
// gradient, or adds in place, depends on what else holds it;
// - what a rank computes alone does not affect other tensors.
// INTARSIA_CHECK=calls compares more: with each collective, all calls that this thread has made on its mesh so far.
struct Origin {
  uint64_t hash = 0;
  uint64_t call = 0;  // its number on the mesh, from 1; 0: unknown

  // Combines the origins of several tensors.
  void add(const Origin& other);
};

// What ranks compare with each collective, besides its fingerprint.
enum class CallCheck { none, tensors, calls };

// INTARSIA_CHECK, read once: "calls", "0" for none, else tensors.
CallCheck call_check();

// The calls of one thread on one mesh. One thread adds; others may read meanwhile, for an error.
class CallLog {
 public:
  static constexpr uint64_t kKept = 64;

  // `what`: a hash of the call; the layout helps to recognize it.
  Origin add(const char* op, const Layout* layout, uint64_t what, const Origin& operands);
  // The same for a tensor made of plain ones.
  Origin add_new(const char* op, const Layout* layout, uint64_t what);

  uint64_t hash() const { return hash_.load(std::memory_order_relaxed); }  // of all calls so far
  uint64_t count() const { return count_.load(std::memory_order_relaxed); }

  struct Line {
    uint64_t number, hash;
    std::string text;  // aten::mul, [S(0)], of what call 3 made
  };
  // The last ones, up to call `end`, oldest first.
  std::vector<Line> lines(uint64_t end) const;

 private:
  struct Entry {
    std::atomic<const char*> op{nullptr};
    std::atomic<const Layout*> layout{nullptr};
    std::atomic<uint64_t> operand{0}, hash{0};
  };
  Entry kept_[kKept];
  std::atomic<uint64_t> count_{0}, hash_{0};
  std::unordered_map<uint64_t, uint64_t> new_ones_;  // how many, by form
};

// The log of this thread on a mesh. By the mesh's hash for readers: null if nothing was called there.
CallLog& calls_on(const DeviceMesh& mesh);
std::shared_ptr<const CallLog> calls_on(size_t mesh);

// A part of the hash of a call: the placements and the global shape of its result.
uint64_t hash_of_form(const Layout& layout, c10::ArrayRef<int64_t> sizes);

// Sets the origin of the tensors that the collectives of this scope move.
class OriginScope {
 public:
  explicit OriginScope(const Origin& origin);
  ~OriginScope();
  OriginScope(const OriginScope&) = delete;
  OriginScope& operator=(const OriginScope&) = delete;
  static uint64_t current();

 private:
  uint64_t outer_;
};

// The first call in which two logs differ, as a sentence; empty if they do not differ, as far back as both reach.
std::string first_difference(const std::vector<CallLog::Line>& ours, int64_t rank,
                             const std::vector<CallLog::Line>& theirs, int64_t other);

}  // namespace intarsia
