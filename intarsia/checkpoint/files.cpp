#include "intarsia/checkpoint/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include <c10/util/Exception.h>

namespace intarsia::checkpoint {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_with(int code, const char* what, const std::string& path) {
  TORCH_CHECK(false, "could not ", what, " ", path, ": ", std::strerror(code));
}

template <class Call>
auto with_errors(const char* what, const std::string& path, Call call) {
  try {
    return call();
  } catch (const fs::filesystem_error& error) {
    fail_with(error.code().value(), what, path);
  }
}

// The kernel moves at most 2 GB in one call.
constexpr int64_t kMostAtOnce = 1 << 30;

}  // namespace

OpenFile::OpenFile(OpenFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

OpenFile::~OpenFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

OpenFile OpenFile::reading(const std::string& path) {
  int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail_with(errno, "open", path);
  return OpenFile(path, descriptor);
}

OpenFile OpenFile::writing(const std::string& path) {
  int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor < 0) fail_with(errno, "create", path);
  return OpenFile(path, descriptor);
}

OpenFile OpenFile::changing(const std::string& path) {
  int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) fail_with(errno, "open", path);
  return OpenFile(path, descriptor);
}

int64_t OpenFile::size() const {
  struct stat status;
  if (::fstat(descriptor_, &status) != 0) fail_with(errno, "read the size of", path_);
  if (!S_ISREG(status.st_mode)) fail_with(EISDIR, "read", path_);
  return status.st_size;
}

void OpenFile::read(void* to, int64_t bytes, int64_t offset) const {
  for (auto* next = static_cast<char*>(to); bytes > 0;) {
    auto got = ::pread(descriptor_, next, std::min(bytes, kMostAtOnce), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_with(errno, "read", path_);
    TORCH_CHECK(got > 0, "could not read ", path_, ": it ends at byte ", offset, ", but ", bytes, " more are needed");
    next += got, bytes -= got, offset += got;
  }
}

void OpenFile::write(const void* from, int64_t bytes, int64_t offset) const {
  for (auto* next = static_cast<const char*>(from); bytes > 0;) {
    auto done = ::pwrite(descriptor_, next, std::min(bytes, kMostAtOnce), offset);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_with(errno, "write", path_);
    next += done, bytes -= done, offset += done;
  }
}

void OpenFile::begin_sync([[maybe_unused]] int64_t bytes, [[maybe_unused]] int64_t offset) const {
#ifdef SYNC_FILE_RANGE_WRITE
  ::sync_file_range(descriptor_, offset, bytes, SYNC_FILE_RANGE_WRITE);  // an error here appears again in sync()
#endif
}

void OpenFile::sync() const {
  if (::fsync(descriptor_) != 0) fail_with(errno, "sync", path_);
}

bool OpenFile::try_lock() const { return ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0; }
void OpenFile::unlock() const { ::flock(descriptor_, LOCK_UN); }

std::string read_text(const std::string& path, int64_t limit) {
  auto file = OpenFile::reading(path);
  auto size = file.size();
  TORCH_CHECK(size <= limit, path, " has ", size, " bytes; such files have at most ", limit);
  std::string text(size, '\0');
  file.read(text.data(), size, 0);
  return text;
}

void write_text(const std::string& path, const std::string& text) {
  auto file = OpenFile::writing(path);
  file.write(text.data(), text.size(), 0);
  file.sync();
}

bool path_exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

int64_t file_size(const std::string& path) { return OpenFile::reading(path).size(); }

std::vector<std::string> names_in(const std::string& folder) {
  if (!path_exists(folder)) return {};
  return with_errors("list", folder, [&] {
    std::vector<std::string> names;
    for (auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  });
}

void make_folders(const std::string& path) {
  with_errors("make the folder", path, [&] { fs::create_directories(path); });
}

void sync_folder(const std::string& path) {
  int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_with(errno, "open the folder", path);
  int code = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  if (code && code != EINVAL)
    fail_with(code, "sync the folder", path);  // some file systems cannot sync a folder, and need not
}

void drop_from_cache([[maybe_unused]] const std::string& path) {
#ifdef POSIX_FADV_DONTNEED
  int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return;                              // no such file
  ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);  // a hint
  ::close(descriptor);
#endif
}

void remove_all(const std::string& path) {
  with_errors("remove", path, [&] {
    try {
      fs::remove_all(path);
    } catch (const fs::filesystem_error& error) {  // another process removes it as well
      if (error.code() != std::errc::no_such_file_or_directory) throw;
      fs::remove_all(path);
    }
  });
}

bool put_in_place(const std::string& from, const std::string& to) {
  auto renamed = [&](unsigned flags) { return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0; };
  for (int attempt = 0; attempt < 100; ++attempt) {
    if (renamed(RENAME_NOREPLACE)) return false;
    // A file system without these flags: a plain rename, which fails if a folder that is not empty is there.
    if (errno == EINVAL || errno == ENOSYS) {
      if (renamed(0)) return false;
      fail_with(errno, "rename to", to);
    }
    if (errno != EEXIST) fail_with(errno, "rename to", to);
    if (renamed(RENAME_EXCHANGE)) return true;
    if (errno != ENOENT || !path_exists(from)) fail_with(errno, "replace", to);
    // Another process removed it between the two calls: try again.
  }
  fail_with(EBUSY, "replace", to);
}

std::string folder_of(const std::string& path) {
  auto end = path.find_last_not_of('/');
  if (end == std::string::npos) return path.empty() ? "." : "/";
  auto slash = path.find_last_of('/', end);
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string name_of(const std::string& path) {
  auto end = path.find_last_not_of('/');
  if (end == std::string::npos) return "";
  auto slash = path.find_last_of('/', end);
  auto begin = slash == std::string::npos ? 0 : slash + 1;
  return path.substr(begin, end + 1 - begin);
}

}  // namespace intarsia::checkpoint
