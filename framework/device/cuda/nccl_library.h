// libnccl.so.2, loaded on demand.
#pragma once

#include <string>

#include "framework/device/cuda/nccl_api.h"

namespace heddle {

class NcclLibrary {
 public:
  // HEDDLE_NCCL_LIBRARY, or libnccl.so.2 as the loader finds it; once per process, never unloaded.
  // Throws heddle::Error (environment): not found, not NCCL, or older than 2.14.
  static const NcclLibrary& get();

  const nccl::Api& api() const { return api_; }
  const std::string& version() const { return version_; }  // "2.28.9"
  const std::string& path() const { return path_; }

  // Throws comm_error unless `result` is success or in progress: "NCCL: <call>: <why>". `comm` may
  // know more about it, nullptr.
  void check(nccl::Result result, const char* call, nccl::Comm comm) const;

 private:
  NcclLibrary();
  nccl::Api api_{};
  std::string version_, path_;
};

}  // namespace heddle
