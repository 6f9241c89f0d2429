#include "intarsia/propagate/guide.h"

#include <memory>
#include <mutex>

namespace intarsia {
namespace {

std::mutex& guide_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

std::shared_ptr<const Guide>& guide_of_process() {
  static auto* guide = new std::shared_ptr<const Guide>;
  return *guide;
}

// A call in progress keeps the guide that it found.
std::shared_ptr<const Guide> current_guide() {
  if (!is_guided()) return nullptr;
  std::lock_guard lock(guide_mutex());
  return guide_of_process();
}

}  // namespace

void set_guide(Guide guide) {
  static int64_t count = 0;
  auto next = guide.advise ? std::make_shared<const Guide>(std::move(guide)) : nullptr;
  std::lock_guard lock(guide_mutex());
  set_guide_number(next ? ++count : 0);
  guide_of_process() = std::move(next);
}

std::optional<Advice> advice_for(const Question& question) {
  auto guide = current_guide();
  if (!guide) return std::nullopt;
  UnguidedScope scope;  // the guide may call ops itself
  return guide->advise(question);
}

std::string worded_by_guide(const std::string& op, const std::string& error) {
  auto guide = current_guide();
  return guide && guide->word ? guide->word(op, error) : error;
}

void show_number_to_guide(const std::string& op) {
  auto guide = current_guide();
  if (guide && guide->see_number) guide->see_number(op);
}

}  // namespace intarsia
