#include "intarsia/checkpoint/verify.h"

#include "intarsia/checkpoint/catalog.h"
#include "intarsia/checkpoint/gather_text.h"
#include "intarsia/checkpoint/hugging_face.h"
#include "intarsia/checkpoint/inspect.h"
#include "intarsia/checkpoint/reader.h"

namespace intarsia::checkpoint {
namespace {

// Collects the problems of several steps, so that one does not hide the next.
class Problems {
 public:
  explicit Problems(std::vector<std::string>& lines) : lines_(lines) {}
  template <class Step>
  bool find_in(const std::string& what, Step step) {
    try {
      step();
      return true;
    } catch (const std::exception& error) {
      lines_.push_back(what + text_of_error(error));
      return false;
    }
  }

 private:
  std::vector<std::string>& lines_;
};

void read_pieces(const std::string& path, const std::string& folder, const CheckpointIndex& index, Problems& problems) {
  Progress progress("verifying " + path, bytes_of_files(index), nullptr, true);
  PieceReader reader(folder, index);
  for (auto& [name, tensor] : index.tensors) {
    for (auto& piece : tensor.pieces) {
      problems.find_in("tensor \"" + name + "\": ", [&] { reader.check(tensor, piece, progress); });
    }
  }
}

// Every file separately, then the index against all of them, then all bytes: a disk may be unable to read some.
void verify_hugging_face(const std::string& path, Verified& verified) {
  Problems problems(verified.problems);
  HuggingFaceFiles files;
  if (!problems.find_in("", [&] { files = hugging_face_files(path); })) return;
  CheckpointIndex index;
  for (auto& name : files.names) problems.find_in("", [&] { add_hugging_face_file(index, files.folder, name); });
  for (auto& problem : problems_of_map(files, index)) verified.problems.push_back(problem);
  read_pieces(path, files.folder, index, problems);
  verified.map = files.map.has_value();
  verified.tensors = index.tensors.size();
  verified.files = index.files.size();
  verified.bytes = bytes_of_files(index);
}

void verify_own(const std::string& path, Verified& verified) {
  Problems problems(verified.problems);
  CheckpointIndex index;
  verified.checksums = true;
  if (!problems.find_in("", [&] { index = read_index(path); })) return;
  for (auto& file : index.files) {
    problems.find_in("", [&] {
      auto one = index;
      one.files = {file};
      check_files(path, one);
      auto header = read_header(OpenFile::reading(path + "/" + file.name));
      TORCH_CHECK(header.checksum == file.header_checksum, "the header of ", path, "/", file.name, ", which rank ",
                  file.rank, " wrote, is damaged");
    });
  }
  read_pieces(path, path, index, problems);
  verified.tensors = index.tensors.size();
  verified.files = index.files.size();
  verified.bytes = bytes_of_files(index);
}

}  // namespace

Verified verify(const std::string& path) {
  Verified verified;
  bool hugging_face = !path_exists(path + "/" + kIndexName) && is_hugging_face(path);
  hugging_face ? verify_hugging_face(path, verified) : verify_own(path, verified);
  return verified;
}

std::vector<std::string> problems_of(const std::string& path) { return verify(path).problems; }

std::string str(const Verified& verified, const std::string& path) {
  std::string text;
  for (auto& problem : verified.problems) text += problem + "\n";
  if (!text.empty()) return text;
  if (verified.checksums) return path + " is as it was written.\n";
  return c10::str(path, " is well formed. Its values cannot be checked: ",
                  "files of Hugging Face have no checksums.\n  checked: ", verified.files, " file(s), ",
                  verified.tensors, " tensors, ", bytes_text(verified.bytes),
                  ": headers, shapes and dtypes against bytes, offsets, lengths of files",
                  verified.map ? ", the index against the files" : "",
                  "\n  not checked: values, names, shapes with the same number of elements\n");
}

}  // namespace intarsia::checkpoint
