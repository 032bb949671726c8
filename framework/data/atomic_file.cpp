#include "framework/data/atomic_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>

namespace heddle {
namespace {

// Distinct over threads, processes and hosts that share a folder.
std::string temporary_name(const std::string& path) {
  static std::atomic<int> counter{0};
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return fmt::format("{}.tmp-{}-{}-{}", path, host.data(), getpid(), counter++);
}

}  // namespace

AtomicFile::AtomicFile(std::string path)
    : path_(std::move(path)),
      temporary_(temporary_name(path_)),
      file_(file_system().create(temporary_)) {}

AtomicFile::~AtomicFile() {
  if (file_ == nullptr) return;
  file_.reset();
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
}

void AtomicFile::commit() {
  file_->close();
  file_system().rename(temporary_, path_);
  file_.reset();
}

}  // namespace heddle
