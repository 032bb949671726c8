// The part of NCCL's interface that Heddle uses, as NCCL 2.14 and every newer 2.x has it. The
// library is loaded when it is wanted, so its header is not needed to build; nccl_api_check.cpp
// compares the two where it is there.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

struct ncclComm;

namespace heddle::nccl {

inline constexpr size_t kUniqueIdBytes = 128;
struct UniqueId {
  char internal[kUniqueIdBytes];
};

using Comm = ::ncclComm*;

using Result = int;
inline constexpr Result kSuccess = 0, kUnhandledCudaError = 1, kSystemError = 2, kInternalError = 3,
                        kInvalidArgument = 4, kInvalidUsage = 5, kRemoteError = 6, kInProgress = 7;

using DataType = int;
inline constexpr DataType kInt8 = 0;

// The library reads `size` bytes and takes its defaults for the rest.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;  // calls return kInProgress where they would wait for other ranks
};

inline constexpr int kOldestVersion = 21400;

// Members are named as the functions without "nccl".
struct Api {
  Result (*GetVersion)(int* version);
  Result (*GetUniqueId)(UniqueId* id);
  Result (*CommInitRankConfig)(Comm* comm, int ranks, UniqueId id, int rank, Config* config);
  Result (*CommFinalize)(Comm comm);
  Result (*CommDestroy)(Comm comm);
  Result (*CommAbort)(Comm comm);
  Result (*CommGetAsyncError)(Comm comm, Result* error);
  Result (*GroupStart)();
  Result (*GroupEnd)();
  Result (*Send)(const void* data, size_t count, DataType type, int peer, Comm comm,
                 cudaStream_t stream);
  Result (*Recv)(void* data, size_t count, DataType type, int peer, Comm comm, cudaStream_t stream);
  const char* (*GetErrorString)(Result result);
  const char* (*GetLastError)(Comm comm);
};

}  // namespace heddle::nccl
