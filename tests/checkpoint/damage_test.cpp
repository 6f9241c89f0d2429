// Whatever happens to the files of a checkpoint: an error that names it, or the right values.

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <random>

#include <sys/mman.h>
#include <sys/resource.h>

#include "intarsia/checkpoint/checkpoint.h"
#include "intarsia/checkpoint/checksum.h"
#include "intarsia/checkpoint/hugging_face.h"
#include "intarsia/tensor/dtensor.h"
#include "tests/checkpoint/folders.h"
#include "tests/support/error_text.h"

namespace intarsia::checkpoint_damage_test {
namespace {

namespace fs = std::filesystem;

// INTARSIA_FUZZ=n: n rounds of random damage, and every bit and every length instead of some.
int64_t rounds_of_fuzz() {
  auto* given = std::getenv("INTARSIA_FUZZ");
  return given ? std::atoll(given) : 2000;
}
size_t stride_of_damage() { return std::getenv("INTARSIA_FUZZ") ? 1 : 13; }

// Two checkpoints of small tensors on two simulated ranks, and what the second holds.
class CheckpointDamage : public testing::Test {
 protected:
  void SetUp() override {
    auto world = simulate(2);
    auto mesh = init_device_mesh(c10::kCPU, {2});
    for (auto* name : {"one", "two"}) {
      auto scale = name[0] == 'o' ? 1 : 2;
      checkpoint::save(folder_ / name, {{"a", distribute_tensor(a_ * scale, mesh, {Shard(0)})},
                                        {"b", distribute_tensor(b_ * scale, mesh, {Replicate()})},
                                        {"step", scale}});
    }
  }

  // Whether "two" loads, and rightly.
  enum Outcome { right, refused, wrong };
  Outcome load_two() {
    auto a = at::zeros_like(a_), b = at::zeros_like(b_);
    try {
      auto step = checkpoint::load(folder_ / "two", {{"a", a}, {"b", b}}).integer("step");
      return step == 2 && a.equal(a_ * 2) && b.equal(b_ * 2) ? right : wrong;
    } catch (const c10::Error&) {
      return refused;
    }
  }
  void expect_one_is_latest() {
    EXPECT_EQ(checkpoint::latest(folder_.path()), folder_ / "one");
    auto a = at::zeros_like(a_);
    checkpoint::load(folder_ / "one", {{"a", a}});
    EXPECT_TRUE(a.equal(a_));
  }
  std::vector<std::string> files() {
    return {folder_ / "two/index.json", folder_ / "two/rank-0-of-2.safetensors",
            folder_ / "two/rank-1-of-2.safetensors"};
  }

  TestFolder folder_{"damage"};
  at::Tensor a_ = at::arange(6, at::kFloat).reshape({3, 2}), b_ = at::arange(4, at::kLong);
};

TEST_F(CheckpointDamage, AFlippedBitIsAnErrorOrChangesNothing) {
  for (auto& path : files()) {
    auto bytes = read_file(path);
    size_t refusals = 0, tried = 0;
    for (size_t bit = 0; bit < bytes.size() * 8; bit += stride_of_damage(), ++tried) {
      auto flipped = bytes;
      flipped[bit / 8] ^= 1 << bit % 8;
      write_file(path, flipped);
      auto outcome = load_two();
      ASSERT_NE(outcome, wrong) << path << ", bit " << bit;
      refusals += outcome == refused;
    }
    EXPECT_EQ(refusals, tried) << path;  // every bit counts
    write_file(path, bytes);
  }
  EXPECT_EQ(load_two(), right);
}

TEST_F(CheckpointDamage, AFileThatIsCutOffLeavesThePreviousCheckpoint) {
  for (auto& path : files()) {
    auto bytes = read_file(path);
    for (size_t length = 0; length < bytes.size(); length += stride_of_damage()) {
      write_file(path, bytes.substr(0, length));
      ASSERT_EQ(load_two(), refused) << path << " of " << length << " bytes";
    }
    expect_one_is_latest();
    fs::remove(path);
    ASSERT_EQ(load_two(), refused);
    expect_one_is_latest();
    write_file(path, bytes);
  }
  EXPECT_EQ(checkpoint::latest(folder_.path()), folder_ / "two");
}

TEST_F(CheckpointDamage, TheErrorNamesRankFileAndTensor) {
  auto path = folder_ / "two/rank-1-of-2.safetensors";
  auto bytes = read_file(path);
  auto damaged = bytes;
  damaged.back() ^= 1;
  write_file(path, damaged);
  auto a = at::zeros_like(a_), b = at::zeros_like(b_);
  auto text = error_text<c10::Error>([&] { checkpoint::load(folder_ / "two", {{"a", a}, {"b", b}}); });
  EXPECT_EQ(text, "[checkpoint::load] tensor \"a\": the checksum of bytes " + std::to_string(bytes.size() - 8) +
                      " to " + std::to_string(bytes.size()) + " of " + path + " does not fit: the file is damaged");
  write_file(path, bytes.substr(0, bytes.size() - 1));
  text = error_text<c10::Error>([&] { checkpoint::load(folder_ / "two", {{"a", a}}); });
  EXPECT_EQ(text, "[checkpoint::load] the file " + path + ", which rank 1 wrote, has " +
                      std::to_string(bytes.size() - 1) + " bytes, but had " + std::to_string(bytes.size()) +
                      " when it was written");
}

// A disk that is full: files of this process may not grow beyond a limit.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit now{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_;
  void (*handler_)(int);
};

TEST_F(CheckpointDamage, AFullDiskIsAnErrorAndLeavesNothing) {
  auto large = at::ones({1000});
  for (bool asynchronous : {false, true}) {
    FileLimit limit(2000);
    auto text = error_text<c10::Error>([&] {
      if (asynchronous)
        checkpoint::save_async(folder_ / "three", {{"large", large}}).wait();
      else
        checkpoint::save(folder_ / "three", {{"large", large}});
    });
    EXPECT_EQ(text.substr(0, text.find(".saving-")),
              "[checkpoint::save] " + (folder_ / "three") +
                  " was not written. rank 0: tensor \"large\": could not write " + (folder_ / "three"));
    EXPECT_NE(text.find("File too large"), std::string::npos) << text;
    EXPECT_EQ(checkpoint::latest(folder_.path()), folder_ / "two");
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 2);
  }
}

TEST_F(CheckpointDamage, AnExportToAFullDiskLeavesNothing) {
  FileLimit limit(2000);
  auto text = error_text<c10::Error>([&] { checkpoint::export_full(folder_ / "hf", {{"large", at::ones({1000})}}); });
  EXPECT_EQ(text.substr(0, text.find(".saving-")), "[checkpoint::export_full] could not write " + (folder_ / "hf"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 2);
}

TEST_F(CheckpointDamage, AFailedAsynchronousSaveIsToldByTheNextIfNobodyWaits) {
  {
    FileLimit limit(100);
    auto pending = checkpoint::save_async(folder_ / "three", {{"large", at::ones({1000})}});
    while (!pending.done()) std::this_thread::yield();
  }
  EXPECT_NE(
      error_text<c10::Error>([&] { checkpoint::save(folder_ / "four", {{"x", a_}}); }).find("three was not written"),
      std::string::npos);
  checkpoint::save(folder_ / "four", {{"x", a_}});
}

TEST_F(CheckpointDamage, AFolderThatCannotBeMadeIsAnError) {
  write_file(folder_ / "file", "");
  auto text = error_text<c10::Error>([&] { checkpoint::save(folder_ / "file/c", {{"x", a_}}); });
  EXPECT_EQ(text, "[checkpoint::save] could not make the folder " + (folder_ / "file") + ": Not a directory");
}

TEST_F(CheckpointDamage, WhatAKilledSaveLeftIsRemovedByTheNext) {
  fs::create_directories(folder_ / "three.saving-abc");
  write_file(folder_ / "three.saving-abc/lock", "");
  EXPECT_EQ(checkpoint::latest(folder_.path()), folder_ / "two");
  checkpoint::save(folder_ / "four", {{"x", a_}});
  EXPECT_FALSE(fs::exists(folder_ / "three.saving-abc"));
}

// Memory beyond what is there now, while it lives: an allocation of more fails.
class MemoryLimit {
 public:
  explicit MemoryLimit(rlim_t more) {
    getrlimit(RLIMIT_AS, &before_);
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit now{pages * 4096 + more, before_.rlim_max};
    setrlimit(RLIMIT_AS, &now);
    EXPECT_EQ(mmap(nullptr, 2 * more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
              MAP_FAILED);  // it holds
  }
  ~MemoryLimit() { setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_;
};

// Bytes changed, dropped, doubled, and numbers made large.
std::string mutated(std::string text, std::mt19937& draw) {
  static const char* const kPieces[] = {"9223372036854775807",
                                        "-1",
                                        "18446744073709551615",
                                        "[",
                                        "{",
                                        "\"",
                                        "1e308",
                                        "null",
                                        "[[[[[[[[",
                                        ",",
                                        "0",
                                        "\\u0000",
                                        "BF16"};
  for (int i = 0, n = 1 + draw() % 4; i < n && !text.empty(); ++i) {
    auto at = draw() % text.size();
    switch (draw() % 5) {
      case 0: text[at] = static_cast<char>(draw()); break;
      case 1: text.erase(at, 1 + draw() % 8); break;
      case 2: text.insert(at, text.substr(at, 1 + draw() % 32)); break;
      case 3: text.insert(at, kPieces[draw() % std::size(kPieces)]); break;
      default: {
        auto digit = text.find_first_of("0123456789", at);
        if (digit != std::string::npos) text.replace(digit, 1, kPieces[draw() % 3]);
      }
    }
  }
  return text;
}

// Anything but an error of ours (a crash, an allocation that fails) ends the test.
template <class Call>
void expect_ours(Call call) {
  try {
    call();
  } catch (const c10::Error&) {
  }
}

TEST_F(CheckpointDamage, FuzzedHeadersAreErrorsAndNeverAllocateBeyondTheFile) {
  std::mt19937 draw(20);
  auto bytes = read_file(folder_ / "two/rank-0-of-2.safetensors");
  MemoryLimit limit(16 << 20);  // the file has a few hundred bytes
  for (int64_t round = 0; round < rounds_of_fuzz(); ++round) {
    auto header = mutated(bytes.substr(8), draw);
    uint64_t length = draw() % 4 ? header.size() : draw() % 2 ? draw() : uint64_t{draw()} << 32 | draw();
    auto all = std::string(reinterpret_cast<const char*>(&length), 8) + header;
    expect_ours([&] { checkpoint::parse_header(all, all.size() + draw() % 64); });
    expect_ours([&] { checkpoint::parse_header(mutated(bytes, draw), bytes.size()); });
  }
}

TEST_F(CheckpointDamage, FuzzedIndicesAreErrorsAndNeverAllocateBeyondTheFile) {
  std::mt19937 draw(21);
  auto text = read_file(folder_ / "two/index.json");
  auto rest = text.substr(text.find('\n') + 1);
  MemoryLimit limit(16 << 20);  // the file has a few hundred bytes
  for (int64_t round = 0; round < rounds_of_fuzz(); ++round) {
    auto changed = mutated(rest, draw);  // with a checksum that fits, so that all of it is read
    auto line = "{\"checksum\":\"" +
                checkpoint::checksum_text(checkpoint::checksum_of(changed.data(), changed.size())) + "\",\n";
    expect_ours([&] { checkpoint::parse_index(line + changed); });
  }
}

TEST_F(CheckpointDamage, FuzzedFilesOfOthersAreErrorsOrLoad) {
  std::mt19937 draw(22);
  fs::create_directories(folder_ / "hf");
  auto bytes = read_file(folder_ / "two/rank-0-of-2.safetensors");
  std::string index = R"({"metadata": {}, "weight_map": {"b[0:2]": "x.safetensors", "a[0:2, 0:2]": "x.safetensors"}})";
  for (int64_t round = 0; round < rounds_of_fuzz() / 20; ++round) {
    write_file(folder_ / "hf/x.safetensors", draw() % 2 ? bytes : mutated(bytes, draw));
    write_file(folder_ / "hf/model.safetensors.index.json", mutated(index, draw));
    auto b = at::zeros({2}, at::kLong);
    expect_ours([&] { checkpoint::load(folder_ / "hf", {{"b[0:2]", b}}); });
  }
}

}  // namespace
}  // namespace intarsia::checkpoint_damage_test
