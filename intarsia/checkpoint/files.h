#pragma once
// Durable file operations (write, sync, rename, exchange) whose errors name the file.

#include <cstdint>
#include <string>
#include <vector>

namespace intarsia::checkpoint {

// An open file, closed by its destructor.
class OpenFile {
 public:
  static OpenFile reading(const std::string& path);
  static OpenFile writing(const std::string& path);   // a new one; replaces what was there
  static OpenFile changing(const std::string& path);  // an existing one
  OpenFile(OpenFile&& other) noexcept;
  OpenFile& operator=(OpenFile&&) = delete;
  ~OpenFile();

  const std::string& path() const { return path_; }
  int64_t size() const;
  void read(void* to, int64_t bytes, int64_t offset) const;  // all of them: a file that ends earlier is an error
  void write(const void* from, int64_t bytes, int64_t offset) const;
  void begin_sync(int64_t bytes, int64_t offset) const;  // asks the disk to begin with these; nothing is promised
  void sync() const;                                     // returns when it is on the disk; not called in the destructor

  // Locks the file for this handle alone, until it is closed or the process ends. False if another handle has the lock.
  bool try_lock() const;
  void unlock() const;

 private:
  OpenFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  std::string path_;
  int descriptor_;
};

// The whole of a file that is at most `limit` bytes long.
std::string read_text(const std::string& path, int64_t limit);
// Writes the file to the disk; does not sync the folder.
void write_text(const std::string& path, const std::string& text);

bool path_exists(const std::string& path);
int64_t file_size(const std::string& path);
std::vector<std::string> names_in(const std::string& folder);  // sorted; empty if there is no such folder
void make_folders(const std::string& path);
void sync_folder(const std::string& path);
void remove_all(const std::string& path);
// Lets the system reuse the memory in which it caches the file; later reads go to the disk again.
void drop_from_cache(const std::string& path);

// Renames `from` to `to` in one step. If `to` exists, the two are exchanged, so that `to` exists at every moment;
// returns whether they were. On a file system that cannot exchange them, an existing `to` is an error.
bool put_in_place(const std::string& from, const std::string& to);

// The folder that holds `path`, and its last part; a trailing slash is ignored.
std::string folder_of(const std::string& path);
std::string name_of(const std::string& path);

}  // namespace intarsia::checkpoint
