#pragma once
// Durable file operations (write, sync, rename, exchange) whose errors name the file.

#include <cstdint>
#include <string>
#include <vector>

namespace intarsia::checkpoint {

// An open file, closed when it goes.
class OpenFile {
 public:
  static OpenFile reading(const std::string& path);
  static OpenFile writing(const std::string& path);   // a new one; what was there goes
  static OpenFile changing(const std::string& path);  // one that is there
  OpenFile(OpenFile&& other) noexcept;
  OpenFile& operator=(OpenFile&&) = delete;
  ~OpenFile();

  const std::string& path() const { return path_; }
  int64_t size() const;
  void read(void* to, int64_t bytes, int64_t offset) const;  // all of them: a file that ends before is an error
  void write(const void* from, int64_t bytes, int64_t offset) const;
  void begin_sync(int64_t bytes, int64_t offset) const;  // the disk may begin with these; nothing is promised
  void sync() const;                                     // returns when it is on the disk; not called in the destructor

  // For this file handle alone, until it is closed or the process ends, however it ends. False if another one has it.
  bool try_lock() const;
  void unlock() const;

 private:
  OpenFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  std::string path_;
  int descriptor_;
};

// The whole of a file that is at most `limit` bytes long.
std::string read_text(const std::string& path, int64_t limit);
// Written and on the disk; the folder is not synced.
void write_text(const std::string& path, const std::string& text);

bool path_exists(const std::string& path);
int64_t file_size(const std::string& path);
std::vector<std::string> names_in(const std::string& folder);  // sorted; empty if there is no such folder
void make_folders(const std::string& path);
void sync_folder(const std::string& path);
void remove_all(const std::string& path);
// Lets the system use the memory in which it keeps the file for others. It is read from the disk when it is wanted
// again.
void drop_from_cache(const std::string& path);

// `from` becomes `to` in one step. If `to` is there, the two change places, so that there is one at every moment. True
// if they did. A file system that cannot exchange them: an error if `to` is there.
bool put_in_place(const std::string& from, const std::string& to);

// The folder that holds `path`, and the last part of it; a slash at the end does not count.
std::string folder_of(const std::string& path);
std::string name_of(const std::string& path);

}  // namespace intarsia::checkpoint
