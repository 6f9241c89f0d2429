// What verify says of files without checksums, and of those with.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "intarsia/checkpoint/checkpoint.h"
#include "tests/checkpoint/folders.h"
#include "tests/support/error_text.h"

namespace intarsia::checkpoint_verify_test {
namespace {

using checkpoint::problems_of;
using checkpoint::verify;

// A folder of Hugging Face with two files, a and b in the first, c in the second.
class VerifyForeign : public testing::Test {
 protected:
  void SetUp() override {
    checkpoint::export_full(path_, {{"a", at::arange(6.).reshape({2, 3})}, {"b", at::arange(4)}, {"c", at::ones({5})}},
                            {.file_bytes = 60});
  }
  std::string file(int number) { return path_ + "/model-0000" + std::to_string(number) + "-of-00002.safetensors"; }
  std::string index() { return path_ + "/model.safetensors.index.json"; }
  static void change(const std::string& path, const std::string& from, const std::string& to) {
    auto bytes = read_file(path);
    auto at = bytes.find(from);
    ASSERT_NE(at, std::string::npos);
    write_file(path, bytes.replace(at, from.size(), to));
  }

  TestFolder folder_{"verify"};
  std::string path_ = folder_ / "hf";
};

TEST_F(VerifyForeign, CannotSeeDamagedValuesAndSaysSo) {
  auto bytes = read_file(file(2));
  bytes.back() ^= 1;
  write_file(file(2), bytes);
  auto verified = verify(path_);
  EXPECT_TRUE(verified.problems.empty());
  EXPECT_FALSE(verified.checksums);
  EXPECT_EQ(str(verified, path_),
            path_ +
                " is well formed. Its values cannot be checked: files of Hugging Face "
                "have no "
                "checksums.\n  checked: 2 file(s), 3 tensors, " +
                checkpoint::bytes_text(verified.bytes) +
                ": headers, shapes and dtypes against bytes, offsets, lengths of files, the index against the files\n"
                "  not checked: values, names, shapes with the same number of elements\n");
}

TEST_F(VerifyForeign, NamesAHeaderThatDoesNotFit) {
  change(file(2), "\"shape\":[5]", "\"shape\":[6]");
  EXPECT_EQ(problems_of(path_)[0], file(2) +
                                       " is no safetensors file: the tensor \"c\" has 20 bytes, but its dtype "
                                       "and shape ask for 24");
  change(file(2), "\"shape\":[6]", "\"shape\":[5]");
  change(file(2), "\"F32\"", "\"F99\"");
  EXPECT_EQ(problems_of(path_)[0], file(2) + " is no safetensors file: there is no dtype \"F99\"");
  change(file(2), "\"F99\"", "\"F32\"");
  change(file(2), "[0,20]", "[4,24]");
  EXPECT_EQ(problems_of(path_)[0],
            file(2) +
                " is no safetensors file: the tensor \"c\" is at bytes 4 to 24, but only 20 follow the "
                "header");
}

TEST_F(VerifyForeign, NamesAFileThatIsCutOffOrLonger) {
  auto bytes = read_file(file(2));
  write_file(file(2), bytes.substr(0, bytes.size() - 3));
  ASSERT_EQ(problems_of(path_).size(), 1u);
  EXPECT_EQ(problems_of(path_)[0],
            file(2) +
                " is no safetensors file: the tensor \"c\" is at bytes 0 to 20, but only 17 follow the "
                "header");
  write_file(file(2), bytes + "abc");
  ASSERT_EQ(problems_of(path_).size(), 1u);
  EXPECT_EQ(problems_of(path_)[0], file(2) + " is no safetensors file: the file has " +
                                       std::to_string(bytes.size() + 3) + " bytes, but its tensors end at " +
                                       std::to_string(bytes.size()));
}

TEST_F(VerifyForeign, NamesEveryFileThatIsMissing) {
  for (int number : {1, 2}) std::filesystem::remove(file(number));
  EXPECT_EQ(problems_of(path_),
            (std::vector<std::string>{"could not open " + file(1) + ": No such file or directory",
                                      "could not open " + file(2) + ": No such file or directory"}));
}

TEST_F(VerifyForeign, NamesWhereTheIndexAndTheFilesDiffer) {
  change(index(), "\"c\"", "\"d\"");
  EXPECT_EQ(problems_of(path_),
            (std::vector<std::string>{index() + " says that model-00002-of-00002.safetensors has the tensor \"d\", "
                                                "which it has not",
                                      index() + " does not name the tensor \"c\", which "
                                                "model-00002-of-00002.safetensors has"}));
  write_file(index(), "{}");
  EXPECT_EQ(problems_of(path_),
            (std::vector<std::string>{index() + " is damaged: it is no JSON with a \"weight_map\""}));
}

TEST(Verify, OfACheckpointComparesChecksums) {
  TestFolder folder("verify_own");
  checkpoint::save(folder / "c", {{"x", at::ones({4})}});
  EXPECT_EQ(str(verify(folder / "c"), "c"), "c is as it was written.\n");
  auto path = folder / "c/rank-0-of-1.safetensors";
  auto bytes = read_file(path);
  for (auto at : {bytes.find("F32"), bytes.size() - 1}) {
    auto damaged = bytes;
    damaged[at] ^= 1;
    write_file(path, damaged);
    EXPECT_EQ(problems_of(folder / "c").size(), 1u) << at;
  }
}

// What a save, an export or a conversion would remove.
TEST(ReplacedFolders, AFolderThatIsNoCheckpointIsLeftAlone) {
  TestFolder folder("replaced");
  auto x = at::ones({2});
  checkpoint::save(folder / "runs/one", {{"x", x}});
  checkpoint::save(folder / "runs/one", {{"x", x}});  // a checkpoint may be replaced
  EXPECT_EQ(error_text<c10::ValueError>([&] { checkpoint::save(folder / "runs", {{"x", x}}); }),
            "[checkpoint::save] " + (folder / "runs") +
                " is a folder with other things than a checkpoint, which would be lost. Name a new folder, such as " +
                (folder / "runs") + "/step-100.");
  write_file(folder / "file", "");
  EXPECT_EQ(error_text<c10::ValueError>([&] { checkpoint::save(folder / "file", {{"x", x}}); }),
            "[checkpoint::save] " + (folder / "file") + " is a file, which would be lost. Name a new folder, such as " +
                (folder / "file") + "/step-100.");
  EXPECT_EQ(checkpoint::complete(folder / "runs").size(), 1u);
  std::filesystem::create_directories(folder / "empty");
  checkpoint::save(folder / "empty", {{"x", x}});
}

TEST(ReplacedFolders, AConversionReplacesACheckpointOnlyIfTold) {
  TestFolder folder("replaced_by_convert");
  for (float value : {1, 2}) checkpoint::save(folder / std::to_string(int(value)), {{"x", at::full({2}, value)}});
  EXPECT_EQ(error_text<c10::ValueError>([&] { checkpoint::convert(folder / "1", folder / "2", 1); }),
            "[checkpoint::convert] there is a checkpoint at " + (folder / "2") +
                " already. Name another place, or set replace (--replace).");
  auto x = at::zeros({2});
  checkpoint::load(folder / "2", {{"x", x}});
  EXPECT_EQ(x[0].item<float>(), 2);
  checkpoint::convert(folder / "1", folder / "2", 1, /*replace=*/true);
  checkpoint::load(folder / "2", {{"x", x}});
  EXPECT_EQ(x[0].item<float>(), 1);
  EXPECT_EQ(
      error_text<c10::ValueError>([&] { checkpoint::convert(folder / "1", folder.path(), 1, true); }).substr(0, 22),
      "[checkpoint::convert] ");
}

TEST(ReplacedFolders, AnExportKeepsFilesOfOthers) {
  TestFolder folder("replaced_by_export");
  auto path = folder / "hf";
  for (int i = 0; i < 2; ++i) checkpoint::export_full(path, {{"x", at::ones({2})}});  // its own files may be replaced
  write_file(path + "/config.json", "{}");
  EXPECT_EQ(error_text<c10::ValueError>([&] { checkpoint::export_full(path, {{"x", at::ones({2})}}); }),
            "[checkpoint::export_full] " + path +
                " has config.json, which would be lost. Name a new folder, or set "
                "replace.");
  checkpoint::export_full(path, {{"x", at::ones({2})}}, {.replace = true});
  EXPECT_FALSE(std::filesystem::exists(path + "/config.json"));
}

}  // namespace
}  // namespace intarsia::checkpoint_verify_test
