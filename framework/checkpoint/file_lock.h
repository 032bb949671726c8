// A lock file that says who holds it, for folders that only one process may write.
#pragma once

#include <optional>
#include <string>

namespace heddle {

// Where a file system supports it the lock is flock(2), so it dies with its process, on whatever
// host, and a stale file never blocks. Elsewhere the record inside decides: a process of this host
// is looked up by pid and start time; one of another host counts as alive.
class FileLock {
 public:
  enum class Method { kFlock, kRecord };

  // Nothing when a live process holds it; *holder then reads "pid 12 on host n3 since 2024-...".
  // Throws heddle::Error when the file cannot be written. `method` exists for tests.
  static std::optional<FileLock> try_acquire(const std::string& path, std::string* holder,
                                             Method method = Method::kFlock);
  // Removes the file.
  ~FileLock();
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  const std::string& path() const { return path_; }

 private:
  FileLock(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  int fd_ = -1;
};

}  // namespace heddle
