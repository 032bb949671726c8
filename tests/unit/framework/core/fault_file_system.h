// The real file system until its k-th call, which goes wrong.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "framework/core/error.h"
#include "framework/core/file.h"

namespace heddle::testing {

// What a killed process looks like from inside a test: nothing catches it, nothing runs after it.
struct Killed {};

enum class Fault {
  kOnce,  // this call fails, later ones work
  kFull,  // from this call on nothing can be created or written; renaming and removing work
  kKill,  // the process is gone
};

class FaultFileSystem : public FileSystem {
 public:
  FaultFileSystem(Fault fault, int at) : fault_(fault), at_(at) {}

  int calls() const { return static_cast<int>(log_.size()); }
  bool struck() const { return struck_; }
  // "write model.safetensors" and so on, in order.
  const std::vector<std::string>& log() const { return log_; }

  std::unique_ptr<OutputFile> create(const std::string& path) override {
    step("create", path, true);
    return std::make_unique<File>(this, path, posix_file_system().create(path));
  }
  void create_directories(const std::string& path) override {
    step("mkdirs", path, true);
    posix_file_system().create_directories(path);
  }
  bool create_directory(const std::string& path) override {
    step("mkdir", path, true);
    return posix_file_system().create_directory(path);
  }
  void rename(const std::string& from, const std::string& to) override {
    step("rename", to, false);
    posix_file_system().rename(from, to);
  }
  void sync_directory(const std::string& path) override {
    step("sync", path, false);
    posix_file_system().sync_directory(path);
  }
  void remove_all(const std::string& path) override {
    step("remove", path, false);
    posix_file_system().remove_all(path);
  }

 private:
  class File : public OutputFile {
   public:
    File(FaultFileSystem* owner, std::string path, std::unique_ptr<OutputFile> real)
        : owner_(owner), path_(std::move(path)), real_(std::move(real)) {}
    void write(const void* data, size_t bytes) override {
      if (owner_->is_due()) real_->write(data, bytes / 2);  // a short write, then the fault
      owner_->step("write", path_, true);
      real_->write(data, bytes);
    }
    void close() override {
      owner_->step("close", path_, true);
      real_->close();
    }

   private:
    FaultFileSystem* owner_;
    std::string path_;
    std::unique_ptr<OutputFile> real_;
  };

  bool is_due() const {
    const std::lock_guard lock(mutex_);
    return calls() + 1 == at_;
  }

  void step(const std::string& operation, const std::string& path, bool needs_space) {
    const std::lock_guard lock(mutex_);  // ranks may be threads
    if (struck_ && fault_ == Fault::kKill) throw Killed{};
    const bool due = is_due();
    log_.push_back(operation + " " + path.substr(path.rfind('/') + 1));
    if (due) struck_ = true;
    const bool full = struck_ && fault_ == Fault::kFull && needs_space;
    if (!due && !full) return;
    if (fault_ == Fault::kKill) throw Killed{};
    throw environment_error("file", "cannot " + operation + " " + path + ": injected fault",
                            "free space on the disk or move log.dir");
  }

  mutable std::recursive_mutex mutex_;
  Fault fault_;
  int at_;
  bool struck_ = false;
  std::vector<std::string> log_;
};

}  // namespace heddle::testing
