// Ops on every instruction set (or, with HEDDLE_TEST_CUDA_OPS, on the emulated CUDA device) against
// definitions in double precision. Gradients are compared with central differences of those
// definitions.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "framework/core/parallel_for.h"
#ifdef HEDDLE_TEST_CUDA_OPS
#include "tests/cuda_emulator/ops_test.h"
#else
#include "framework/device/cpu/cpu_ops.h"
#include "tests/unit/kernels/cpu/ops/tables.h"
#endif

namespace heddle::testing {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;
using Ids = std::vector<int32_t>;

#ifndef HEDDLE_TEST_CUDA_OPS
using kernels::noise;

class OpsTest : public kernels::OnEveryTable {
 protected:
  OpsTest() : ops_(table()) {}
  ~OpsTest() override { set_num_threads(0); }
  // Until everything enqueued is done and has raised its errors.
  void settle() {}
  CpuOps ops_;
};
#endif

inline Doubles widen(const Floats& x) {
  return {x.begin(), x.end()};
}

// ||got - want|| / ||want||, or ||got|| where want is zero.
template <class Got>
double relative_error(const Got& got, const Doubles& want) {
  if (got.size() != want.size()) return INFINITY;
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  if (std::isnan(difference)) return INFINITY;
  return size == 0 ? std::sqrt(difference) : std::sqrt(difference / size);
}

// d f / d x at x by central differences.
inline Doubles gradient(const Floats& at, const std::function<double(const Doubles&)>& f) {
  constexpr double kStep = 1e-5;
  Doubles x = widen(at), result(at.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double old = x[i];
    x[i] = old + kStep;
    const double above = f(x);
    x[i] = old - kStep;
    const double below = f(x);
    x[i] = old;
    result[i] = (above - below) / (2 * kStep);
  }
  return result;
}

inline double dot(const Doubles& a, const Floats& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// before + change
inline Doubles plus(const Floats& before, Doubles change) {
  for (size_t i = 0; i < change.size(); ++i) change[i] += before[i];
  return change;
}

// rows of x, each divided by its root mean square
inline Doubles rms(Doubles x, int64_t width) {
  for (size_t at = 0; at < x.size(); at += static_cast<size_t>(width)) {
    double squares = 0;
    for (int64_t i = 0; i < width; ++i) squares += x[at + i] * x[at + i];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(width) + kRmsEps);
    for (int64_t i = 0; i < width; ++i) x[at + i] *= rstd;
  }
  return x;
}

inline double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

inline Ids some_tokens(int64_t n, int64_t vocab) {
  Rng rng(3, "tokens");
  Ids ids(static_cast<size_t>(n));
  for (auto& id : ids) id = static_cast<int32_t>(rng.below(static_cast<uint32_t>(vocab)));
  return ids;
}

// A TokenIndex with its memory, filled by the ops under test.
struct Indexed {
  Indexed(Ops& ops, const Ids& tokens, int64_t vocab)
      : order(tokens.size()),
        ids(tokens.size()),
        starts(tokens.size() + 1),
        scratch(static_cast<size_t>(vocab) + 1),
        index{order.data(), ids.data(), starts.data(), scratch.data(), 0} {
    ops.index_tokens(tokens.data(), static_cast<int64_t>(tokens.size()), vocab, &index);
  }
  Ids order, ids, starts, scratch;
  TokenIndex index;
};

}  // namespace heddle::testing
