// Log lines through spdlog: stdout always, and a file once a run has one. Rank 0 speaks at info,
// other ranks from warning upwards, so that a message of all ranks appears once.
#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace heddle::log {

using spdlog::debug;
using spdlog::error;
using spdlog::info;
using spdlog::warn;

// Called once rank and world size are known; before that the process logs as rank 0 of 1.
void set_rank(int rank, int world_size);

// Appends all further lines to `path` as well. Throws heddle::Error when it cannot be written.
void add_file(const std::string& path);

}  // namespace heddle::log
