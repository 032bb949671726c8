// The 16 attention problems of tests/golden/attention.*, and the gates its README sets.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "framework/checkpoint/safetensors.h"
#include "framework/core/json.h"
#include "tests/unit/support/golden_folder.h"

namespace heddle::testing {

struct GoldenAttention {
  std::string name;
  int64_t batch, q_len, k_len, n_head, n_kv_head, head_dim, window_left, q_pos0, k_pos0;
  float scale;
  std::vector<float> q, k, v, dout;         // (B, T, heads, D)
  std::vector<float> out, lse, dq, dk, dv;  // expected; lse (B, H, Tq)
};

inline std::vector<GoldenAttention> load_golden_attention() {
  const std::string path = golden_folder() + "/attention";
  const SafetensorsFile tensors(path + ".safetensors");
  std::vector<GoldenAttention> problems;
  const json::value list = json::read_file(path + ".json");
  for (const json::value& info : list.as_array()) {
    GoldenAttention p;
    p.name = json::value_to<std::string>(info.at("name"));
    p.batch = info.at("B").as_int64();
    p.q_len = info.at("Tq").as_int64();
    p.k_len = info.at("Tk").as_int64();
    p.n_head = info.at("n_head").as_int64();
    p.n_kv_head = info.at("n_kv_head").as_int64();
    p.head_dim = info.at("head_dim").as_int64();
    p.window_left = info.at("window_left").as_int64();
    p.q_pos0 = info.at("q_pos0").as_int64();
    p.k_pos0 = info.at("k_pos0").as_int64();
    p.scale = static_cast<float>(info.at("scale").to_number<double>());
    const auto tensor = [&](const char* what) { return tensors.tensor(p.name + what).to_f32(); };
    p.q = tensor("/q");
    p.k = tensor("/k");
    p.v = tensor("/v");
    p.dout = tensor("/do");
    p.out = tensor("/o");
    p.lse = tensor("/lse");
    p.dq = tensor("/dq");
    p.dk = tensor("/dk");
    p.dv = tensor("/dv");
    problems.push_back(std::move(p));
  }
  return problems;
}

// ||got - want|| <= 5e-6 * max(||want||, 1)
inline void expect_golden(const char* what, const std::vector<float>& got,
                          const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double error = 0.0, norm = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2.0);
    norm += std::pow(static_cast<double>(want[i]), 2.0);
  }
  EXPECT_LE(std::sqrt(error), 5e-6 * std::max(std::sqrt(norm), 1.0)) << what;
}

// -inf exactly where it belongs, else within 1e-5 + 2e-6 |lse|.
inline void expect_golden_lse(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isinf(want[i])) {
      ASSERT_EQ(got[i], want[i]) << "lse " << i;
    } else {
      ASSERT_NEAR(got[i], want[i], 1e-5 + 2e-6 * std::abs(want[i])) << "lse " << i;
    }
  }
}

}  // namespace heddle::testing
