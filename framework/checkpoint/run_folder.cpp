#include "framework/checkpoint/run_folder.h"

#include <utility>

#include "framework/core/error.h"
#include "framework/core/file.h"

namespace heddle {
namespace {

FileLock acquire(const std::string& run_folder) {
  const std::string path = run_folder + "/.lock";
  std::string holder;
  auto lock = FileLock::try_acquire(path, &holder);
  if (!lock) {
    throw environment_error("run", run_folder + " is in use by another job: " + holder,
                            "stop that job, or set log.name to another name; if it is gone for "
                            "sure, remove " +
                                path);
  }
  return std::move(*lock);
}

}  // namespace

std::string create_run_folder(const std::string& dir, const std::string& name) {
  const std::string base = dir + "/" + name;
  file_system().create_directories(parent_folder(base));
  for (int i = 1;; ++i) {
    const std::string path = i == 1 ? base : base + "-" + std::to_string(i);
    if (!file_system().create_directory(path)) continue;
    file_system().sync_directory(parent_folder(path));
    return path;
  }
}

std::string checkpoints_folder(const std::string& run_folder) {
  return run_folder + "/checkpoints";
}

RunLock::RunLock(const std::string& run_folder) : lock_(acquire(run_folder)) {}

}  // namespace heddle
