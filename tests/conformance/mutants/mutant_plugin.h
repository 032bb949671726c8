// A slow, right attention plugin in which one thing can be made wrong: HEDDLE_MUTANT names it when
// the library is loaded. One source and one compilation for all mutants.
#pragma once

#include <cstdint>

#include "plugins/abi/heddle_attention.h"

namespace heddle::mutants {

enum class Mutant {
  kNone,
  // masks
  kWindowPlusOne,
  kWindowMinusOne,
  kWindowIgnored,
  kWindowZeroUnlimited,
  kWindowFromIndex,
  kWindowFromEnd,
  kWindowBothSides,
  kTopLeft,
  kBottomRight,
  kCausalStrict,
  kCausalPlusOne,
  kCausalIgnored,
  kMaskAlwaysCausal,
  kKPosIgnored,
  // scale and softmax
  kScaleMissing,
  kScaleKOnly,
  kScaleOwn,
  kScaleTwice,
  kExpTwo,
  kNoMax,
  kNotNormalised,
  kHalfPrecision,
  kFp16Overflow,
  kHiddenAsZero,
  kEmptyNan,
  kEmptyUniform,
  // lse
  kLseBaseTwo,
  kLseNoMax,
  kLseEmptyInf,
  kLseEmptyZero,
  kLseStride,
  // heads and batch
  kHeadModulo,
  kHeadFirst,
  kBatchFirst,
  kOddGroupLast,
  // decode
  kReadPastLength,
  kLengthOfRowZero,
  kLengthBeforeAppend,
  kDecodeNoCausal,
  kTailTimesZero,
  kBehindWindowTimesZero,
  kNewestMissing,
  // backward
  kNoGroupSum,
  kGroupMean,
  kDqNoScale,
  kDkNoScale,
  kNoDelta,
  kDqSkipsBlock,
  kDvFirstRowMissing,
  kDkAccumulates,
  kEmptyGradientNan,
  kDkDvSwapped,
  // sizes
  kWrongAtOne,
  kWrongBeyond4096,
  kTailTileDropped,
  kWrongDim80,
  kInt16Index,
  // memory
  kWorkspaceOverrun,
  kWorkspaceUsed,
  kWorkspaceKept,
  kReadsBefore,
  kReadsBehind,
  kStridesIgnored,
  kGapWritten,
  kInputChanged,
  kLastRowUnwritten,
  kZeroAssumed,
  kMaxWorkspaceIgnored,
  kKvLenChanged,
  // execution
  kRace,
  kNotDeterministic,
  kStaticBuffer,
  kWorkerIndex,
  kOneWorkerWrong,
  // conduct
  kAllocates,
  kAllocatesInQuery,
  kMaps,
  kThread,
  kHiddenThread,
  kPrints,
  kLocale,
  kMxcsr,
  kWorkerMxcsr,
  kSignalHandler,
  kEnvironment,
  kDirectory,
  kOpensFile,
  kThrows,
  kContextLeaksFile,
  // query
  kSaysYesToAll,
  kSaysYesThenRefuses,
  kNoReason,
  kWrongGot,
  kWantLies,
  kForgetfulQuery,
  kVerdictOverrun,
  kReasonsOverrun,
  kWindowTwoAccepted,
  kGroupsAccepted,
  kForeignDevice,
  // endings
  kSegfaultOdd,
  kAborts,
  kExits,
  kHangs,
  kStackOverflow,
};

// The mutant of this process; an unknown name ends the process with status 99.
extern const Mutant kMutant;
inline bool is(Mutant m) {
  return kMutant == m;
}

// What is added around every call: allocations, output, signals, ... (conduct.cpp).
void misbehave(heddle_attention_ctx* ctx, const heddle_attention_problem& problem);

uint32_t forward(heddle_attention_ctx*, const heddle_attention_problem*,
                 const heddle_attention_call*);
uint32_t backward(heddle_attention_ctx*, const heddle_attention_problem*,
                  const heddle_attention_call*);
uint32_t decode(heddle_attention_ctx*, const heddle_attention_problem*,
                const heddle_attention_call*);
uint32_t query(heddle_attention_ctx*, const heddle_attention_problem*, heddle_attention_verdict*);

// Bytes of workspace that a call takes: a row of scores and one of gradients for each worker, and
// a block of dk and dv sums for each worker.
uint64_t worker_floats(const heddle_attention_problem& problem);

}  // namespace heddle::mutants

struct heddle_attention_ctx {
  const heddle_host* host;
  uint32_t workers;
};
