#include "framework/core/log.h"

#include <spdlog/sinks/basic_file_sink.h>

#include "framework/core/error.h"

namespace heddle::log {

void set_rank(int rank, int world_size) {
  if (world_size > 1) {
    // No colours: mpirun gives its ranks a terminal even when its own output goes to a file.
    spdlog::set_pattern("%H:%M:%S %l rank " + std::to_string(rank) + ": %v");
  }
  if (world_size == 1) spdlog::set_pattern("%H:%M:%S %^%l%$ %v");
  spdlog::set_level(rank == 0 ? spdlog::level::info : spdlog::level::warn);
}

void add_file(const std::string& path) {
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
    sink->set_pattern("%Y-%m-%d %H:%M:%S %l %v");
    spdlog::default_logger()->sinks().push_back(std::move(sink));
    spdlog::default_logger()->flush_on(spdlog::level::info);
  } catch (const spdlog::spdlog_ex& e) {
    throw environment_error("log", "cannot open the log file " + path + ": " + e.what(),
                            "set log.dir to a folder that can be written");
  }
}

}  // namespace heddle::log
