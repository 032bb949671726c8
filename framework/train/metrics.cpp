#include "framework/train/metrics.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "framework/core/error.h"
#include "framework/core/file.h"

namespace heddle {
namespace {

// What `path` holds up to and including `last_step`; a line that a crash cut short is left out.
std::string lines_up_to(const std::string& path, int64_t last_step) {
  if (last_step <= 0 || !std::filesystem::exists(path)) return {};
  std::string kept;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    boost::system::error_code ec;
    const json::value v = boost::json::parse(line, ec);
    if (ec || !v.is_object() || !v.as_object().contains("step")) continue;
    if (v.at("step").to_number<int64_t>() <= last_step) kept += line + "\n";
  }
  return kept;
}

}  // namespace

struct MetricsFile::Impl {
  std::string path;
  std::ofstream out;
};

MetricsFile::MetricsFile(const std::string& path, int64_t resumed_step)
    : impl_(std::make_unique<Impl>()) {
  write_file_atomically(path, lines_up_to(path, resumed_step));
  impl_->path = path;
  impl_->out.open(path, std::ios::app);
}

MetricsFile::~MetricsFile() = default;

void MetricsFile::write(const json::object& line) {
  impl_->out << json::serialize(line) << '\n' << std::flush;
  if (!impl_->out) {
    throw environment_error("metrics", "cannot write " + impl_->path + ": " + std::strerror(errno),
                            "free space on the disk or move log.dir");
  }
}

int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace heddle
