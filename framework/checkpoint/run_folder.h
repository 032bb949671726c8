// The folder of a run: made once, written by one job at a time.
#pragma once

#include <string>

#include "framework/checkpoint/file_lock.h"

namespace heddle {

// Creates dir/name, or dir/name-2, dir/name-3, ... when that exists, and returns its path. Never
// hands the same folder to two callers. Throws heddle::Error (environment) when it cannot.
std::string create_run_folder(const std::string& dir, const std::string& name);

// Where a run keeps its checkpoints; save_checkpoint() creates it.
std::string checkpoints_folder(const std::string& run_folder);

// Held by rank 0 for as long as it writes to the run folder, through `.lock` in it.
class RunLock {
 public:
  // Throws heddle::Error (environment) naming pid, host and start time of the job that has it.
  explicit RunLock(const std::string& run_folder);

 private:
  FileLock lock_;
};

}  // namespace heddle
