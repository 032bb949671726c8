// The file layer that checkpoints and run folders write through. Every call either succeeds or
// throws heddle::Error (environment) naming path, operation and errno text. Tests inject faults.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace heddle {

// A file being written. close() makes the bytes durable (fsync); without it they are not promised.
class OutputFile {
 public:
  virtual ~OutputFile() = default;
  virtual void write(const void* data, size_t bytes) = 0;
  virtual void close() = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual std::unique_ptr<OutputFile> create(const std::string& path) = 0;
  virtual void create_directories(const std::string& path) = 0;
  // False when something with this name exists already; of two callers only one gets true.
  virtual bool create_directory(const std::string& path) = 0;
  virtual void rename(const std::string& from, const std::string& to) = 0;
  // fsync of a directory: makes creations and renames inside it durable.
  virtual void sync_directory(const std::string& path) = 0;
  virtual void remove_all(const std::string& path) = 0;
};

// The real one, and the one in use (the real one unless a test has replaced it).
FileSystem& posix_file_system();
FileSystem& file_system();
// Replaces the file system in use until the returned guard dies; guards nest.
std::shared_ptr<void> replace_file_system(FileSystem* fs);

// Whole-file helpers over file_system(): write to path + ".tmp", close, rename, sync the folder.
// When a step fails the old contents are still there and the temporary is removed.
void write_file_atomically(const std::string& path, std::string_view contents);
std::string read_text_file(const std::string& path);

// Whether something, or a folder, has this name. What cannot be looked at counts as absent.
bool path_exists(const std::string& path);
bool folder_exists(const std::string& path);

// "runs/a" for "runs/a/b" and for "runs/a/b/"; "." when there is no slash.
std::string parent_folder(const std::string& path);

// A file mapped read-only. data() is nullptr for an empty file.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const unsigned char* data() const { return data_; }
  size_t size() const { return size_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  const unsigned char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace heddle
