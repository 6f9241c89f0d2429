#include "intarsia/random/drawer.h"

#include <cstring>

#include <ATen/ATen.h>

namespace intarsia {
namespace {

// From this many words on, calling the plain op for a single run costs little compared with its numbers.
constexpr int64_t kLong = 1024;

}  // namespace

Drawer::Drawer(const c10::OperatorHandle& op, Stack arguments, const StreamUse& use, int64_t total,
               at::ScalarType dtype, bool contiguous, at::CPUGeneratorImpl& generator)
    : op_(op),
      arguments_(std::move(arguments)),
      use_(use),
      total_(total),
      dtype_(dtype),
      contiguous_(contiguous),
      scratch_(at::detail::createCPUGenerator()),
      drawing_(*scratch_.get<at::CPUGeneratorImpl>()) {
  start_ = now_ = generator.engine().data();
  if (use.keeps_one && generator.next_double_normal_sample()) {
    kept_number_ = generator.next_double_normal_sample();
    kept_ = 1;
  }
  add_stretches();
}

void Drawer::add_stretches() {
  if (!use_.draws_again || total_ % use_.unit == 0) {
    auto units = (total_ - kept_ + use_.unit - 1) / use_.unit;
    stretches_ = {{kept_, total_, 0}};
    words_ = units * use_.words;
    return;
  }
  auto full = total_ / use_.unit * use_.words;
  auto rest = use_.skips_rest ? 0 : total_ % use_.unit * (use_.words / use_.unit);
  stretches_ = {{0, total_ - use_.unit, 0}, {total_ - use_.unit, total_, full + rest}};
  words_ = full + rest + use_.words;
}

void Drawer::draw(const at::Tensor& shard, const HeldRuns& held, const at::Tensor& beside) {
  shard_ = shard;
  beside_ = beside;
  gathered_.clear(), pieces_.clear();  // of a shard whose draw has failed
  last_word_ = -1;
  if (kept_) take_kept(held);
  for (auto& stretch : stretches_) {
    int64_t local = 0;
    held.for_each([&](int64_t begin, int64_t count) {
      auto part = overlap({begin, begin + count}, {stretch.begin, stretch.end});
      if (part.size() > 0) take(stretch, part.begin, part.size(), local + part.begin - begin);
      local += count;
    });
    flush();
  }
}

// The first element of the whole is the number that the generator had kept.
void Drawer::take_kept(const HeldRuns& held) {
  bool is_mine = false;
  held.for_each([&](int64_t begin, int64_t) { is_mine = is_mine || begin == 0; });
  if (!is_mine) return;
  drawing_.set_next_double_normal_sample(kept_number_);
  auto one = room_for(1, dtype_, contiguous_);
  fill(op_, arguments_, one, scratch_);
  shard_.narrow(0, 0, 1).copy_(one);
}

void Drawer::take(const Stretch& stretch, int64_t begin, int64_t count, int64_t to) {
  auto unit = use_.unit;
  auto offset = begin - stretch.begin;
  auto word = stretch.word + offset / unit * use_.words;
  if (auto skipped = offset % unit) {  // begins inside a unit
    auto part = std::min(count, unit - skipped);
    gather(word, skipped, part, to);
    count -= part, to += part, word += use_.words;
  }
  auto full = count / unit;
  if (full * use_.words >= kLong && contiguous_) {
    take_directly(word, full * unit, to);
  } else {
    for (int64_t i = 0; i < full; ++i) gather(word + i * use_.words, 0, unit, to + i * unit);
  }
  if (auto rest = count % unit) gather(word + full * use_.words, 0, rest, to + full * unit);
}

void Drawer::take_directly(int64_t word, int64_t count, int64_t to) {
  if (beside_.defined()) flush();  // gathered elements must be beside consecutive ones
  seek(word);
  call(shard_.narrow(0, to, count), now_, to);
  now_ = drawing_.engine().data();
  at_ += count / use_.unit * use_.words;
}

// Elements [from, from + count) of the unit that is drawn from `word`.
void Drawer::gather(int64_t word, int64_t from, int64_t count, int64_t to) {
  auto before = gathered_.size();
  bool is_there = word == last_word_ && before > 0;
  if (!is_there) {
    if (before + use_.words > at::MERSENNE_STATE_N) {
      flush();
      before = 0;
    }
    gathered_.resize(before + use_.words);
    seek(word);
    read_words(now_, gathered_.data() + before, use_.words);
    at_ += use_.words;
    last_word_ = word;
    before = gathered_.size();
  }
  auto place = (static_cast<int64_t>(before) / use_.words - 1) * use_.unit + from;
  if (!pieces_.empty() && pieces_.back().from + pieces_.back().count == place &&
      pieces_.back().to + pieces_.back().count == to) {
    pieces_.back().count += count;
  } else {
    pieces_.push_back({place, to, count});
  }
}

void Drawer::flush() {
  last_word_ = -1;
  if (gathered_.empty()) return;
  auto state = start_;
  give_words(state, gathered_.data(), static_cast<int>(gathered_.size()));
  auto numbers = room_for(static_cast<int64_t>(gathered_.size()) / use_.words * use_.unit, dtype_, contiguous_);
  call(numbers, state, pieces_.front().to);
  numbers = numbers.contiguous();
  auto size = static_cast<int64_t>(numbers.element_size());
  auto* from = static_cast<const char*>(numbers.const_data_ptr());
  auto* to = static_cast<char*>(shard_.mutable_data_ptr());
  for (auto& piece : pieces_) std::memcpy(to + piece.to * size, from + piece.from * size, piece.count * size);
  gathered_.clear();
  pieces_.clear();
}

void Drawer::seek(int64_t word) {
  if (word < at_) {
    now_ = start_;
    at_ = 0;
  }
  advance(now_, word - at_);
  at_ = word;
}

void Drawer::call(const at::Tensor& target, const Mt19937State& from, int64_t place_beside) {
  engine_.set_data(from);
  drawing_.set_engine(engine_);
  if (use_.keeps_one) drawing_.set_next_double_normal_sample(std::nullopt);
  if (beside_.defined()) arguments_[1] = beside_.narrow(0, place_beside, target.numel());
  fill(op_, arguments_, target, scratch_);
}

void Drawer::finish(at::CPUGeneratorImpl& generator) {
  std::optional<double> keeps;
  if (use_.keeps_one && (total_ - kept_) % 2) {
    seek(words_ - use_.words);
    call(room_for(1, dtype_, contiguous_), now_, 0);
    keeps = drawing_.next_double_normal_sample();
  }
  seek(words_);
  set(generator, now_, keeps);
}

void Drawer::undo(at::CPUGeneratorImpl& generator) { set(generator, start_, kept_number_); }

void Drawer::set(at::CPUGeneratorImpl& generator, const Mt19937State& state, std::optional<double> keeps) {
  engine_.set_data(state);
  generator.set_engine(engine_);
  if (use_.keeps_one) generator.set_next_double_normal_sample(keeps);
}

}  // namespace intarsia
