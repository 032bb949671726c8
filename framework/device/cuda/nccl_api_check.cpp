// Compiled where NCCL's header is installed: nccl_api.h says the same.
#include <nccl.h>

#include <type_traits>

#include "framework/device/cuda/nccl_api.h"

namespace heddle::nccl {
namespace {

static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId) && kUniqueIdBytes == NCCL_UNIQUE_ID_BYTES);
static_assert(std::is_same_v<Comm, ncclComm_t>);
static_assert(sizeof(Result) == sizeof(ncclResult_t) && sizeof(DataType) == sizeof(ncclDataType_t));
static_assert(kSuccess == ncclSuccess && kUnhandledCudaError == ncclUnhandledCudaError &&
              kSystemError == ncclSystemError && kInternalError == ncclInternalError &&
              kInvalidArgument == ncclInvalidArgument && kInvalidUsage == ncclInvalidUsage &&
              kRemoteError == ncclRemoteError && kInProgress == ncclInProgress);
static_assert(kInt8 == ncclInt8);
static_assert(offsetof(Config, size) == offsetof(ncclConfig_t, size) &&
              offsetof(Config, magic) == offsetof(ncclConfig_t, magic) &&
              offsetof(Config, version) == offsetof(ncclConfig_t, version) &&
              offsetof(Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(NCCL_VERSION(2, 14, 0) == kOldestVersion && NCCL_VERSION_CODE >= kOldestVersion);

// The same number of parameters, each of the same size and kind.
template <class A, class B>
inline constexpr bool kAlike =
    sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;
template <class A, class B>
struct SameCall : std::false_type {};
template <class R, class... P, class S, class... Q>
requires(sizeof...(P) == sizeof...(Q)) struct SameCall<R (*)(P...), S (*)(Q...)>
    : std::bool_constant<kAlike<R, S> && (... && kAlike<P, Q>)> {
};

#define HEDDLE_SAME_CALL(name) \
  static_assert(SameCall<decltype(Api::name), decltype(&nccl##name)>::value, #name)
HEDDLE_SAME_CALL(GetVersion);
HEDDLE_SAME_CALL(GetUniqueId);
HEDDLE_SAME_CALL(CommInitRankConfig);
HEDDLE_SAME_CALL(CommFinalize);
HEDDLE_SAME_CALL(CommDestroy);
HEDDLE_SAME_CALL(CommAbort);
HEDDLE_SAME_CALL(CommGetAsyncError);
HEDDLE_SAME_CALL(GroupStart);
HEDDLE_SAME_CALL(GroupEnd);
HEDDLE_SAME_CALL(Send);
HEDDLE_SAME_CALL(Recv);
HEDDLE_SAME_CALL(GetErrorString);
HEDDLE_SAME_CALL(GetLastError);

}  // namespace
}  // namespace heddle::nccl
