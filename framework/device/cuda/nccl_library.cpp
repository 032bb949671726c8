#include "framework/device/cuda/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "framework/core/error.h"

namespace heddle {
namespace {

constexpr const char* kRemedy =
    "install NCCL 2.14 or newer for the CUDA of this build (NVIDIA's package libnccl2, or the "
    "wheel nvidia-nccl-cu13 with its lib folder in LD_LIBRARY_PATH or HEDDLE_NCCL_LIBRARY naming "
    "the file), or start one process";

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version % 10000 / 100) + "." +
         std::to_string(version % 100);
}

}  // namespace

const NcclLibrary& NcclLibrary::get() {
  static const auto& library = *new NcclLibrary();
  return library;
}

NcclLibrary::NcclLibrary() {
  const char* named = std::getenv("HEDDLE_NCCL_LIBRARY");
  const std::string file = named != nullptr && *named != '\0' ? named : "libnccl.so.2";
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    throw environment_error(
        "nccl", "NCCL cannot be loaded: " + std::string(why != nullptr ? why : file), kRemedy);
  }
  const auto find = [&](auto* function, const char* name) {
    void* symbol = dlsym(handle, name);
    if (symbol == nullptr) {
      throw environment_error("nccl", file + " has no " + name, kRemedy);
    }
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(symbol);
  };
  find(&api_.GetVersion, "ncclGetVersion");
  int version = 0;
  if (api_.GetVersion(&version) != nccl::kSuccess || version < nccl::kOldestVersion) {
    throw environment_error(
        "nccl", file + " is NCCL " + version_text(version) + ", 2.14 is the oldest that serves",
        kRemedy);
  }
  version_ = version_text(version);
  find(&api_.GetUniqueId, "ncclGetUniqueId");
  find(&api_.CommInitRankConfig, "ncclCommInitRankConfig");
  find(&api_.CommFinalize, "ncclCommFinalize");
  find(&api_.CommDestroy, "ncclCommDestroy");
  find(&api_.CommAbort, "ncclCommAbort");
  find(&api_.CommGetAsyncError, "ncclCommGetAsyncError");
  find(&api_.GroupStart, "ncclGroupStart");
  find(&api_.GroupEnd, "ncclGroupEnd");
  find(&api_.Send, "ncclSend");
  find(&api_.Recv, "ncclRecv");
  find(&api_.GetErrorString, "ncclGetErrorString");
  find(&api_.GetLastError, "ncclGetLastError");
  Dl_info info{};
  path_ = dladdr(reinterpret_cast<void*>(api_.GetVersion), &info) != 0 ? info.dli_fname : file;
}

void NcclLibrary::check(nccl::Result result, const char* call, nccl::Comm comm) const {
  if (result == nccl::kSuccess || result == nccl::kInProgress) return;
  std::string why = api_.GetErrorString(result);
  const char* more = api_.GetLastError(comm);
  if (more != nullptr && *more != '\0') why += std::string(" (") + more + ")";
  throw comm_error(std::string("NCCL: ") + call + ": " + why,
                   result == nccl::kRemoteError
                       ? "See what the other ranks say first; the last checkpoint can be resumed"
                       : "Run with NCCL_DEBUG=INFO to see what NCCL says about it");
}

}  // namespace heddle
