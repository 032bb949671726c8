// Every table of kernels that this processor can run, for parameterized tests.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "framework/core/rng.h"
#include "kernels/cpu/ops/ops_table.h"

namespace heddle::kernels {

// The 16-lane source compiled for AVX2; built for tests only.
const OpsTable& ops_table_avx512_on_avx2();

inline std::vector<const OpsTable*> tables_here() {
  std::vector<const OpsTable*> tables = {&ops_table_baseline()};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    tables.push_back(&ops_table_avx2());
    tables.push_back(&ops_table_avx512_on_avx2());
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    tables.push_back(&ops_table_avx512());
  }
  return tables;
}

class OnEveryTable : public ::testing::TestWithParam<const OpsTable*> {
 protected:
  const OpsTable& table() const { return *GetParam(); }
};

inline std::string table_name(const ::testing::TestParamInfo<const OpsTable*>& info) {
  return info.param->isa;
}

inline std::vector<float> noise(int64_t n, const std::string& stream, float scale = 1.0f) {
  Rng rng(7, stream);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = scale * rng.normal();
  return x;
}

}  // namespace heddle::kernels

#define HEDDLE_ON_EVERY_TABLE(suite)                                                          \
  INSTANTIATE_TEST_SUITE_P(Isa, suite, ::testing::ValuesIn(::heddle::kernels::tables_here()), \
                           ::heddle::kernels::table_name)
