// A file that appears under its name only when it is whole, safe against other ranks that write the
// same file at the same time.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "framework/core/file.h"

namespace heddle {

// Writes under a temporary name that no other writer uses; commit() makes the bytes durable and
// renames. Without commit() the temporary file is removed. Throws as FileSystem does.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t bytes) { file_->write(data, bytes); }
  void commit();

 private:
  std::string path_, temporary_;
  std::unique_ptr<OutputFile> file_;
};

}  // namespace heddle
