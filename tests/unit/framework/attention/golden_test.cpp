// The golden attention problems through the plugin interface: each plugin is a shared library that
// the host loads.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "framework/attention/names.h"
#include "framework/attention/plugin.h"
#include "framework/checkpoint/safetensors.h"
#include "framework/core/json.h"
#include "tests/unit/framework/attention/fixtures.h"

namespace heddle {
namespace {

const std::string kGolden = std::string(HEDDLE_SOURCE_DIR) + "/tests/golden/attention";

// One case: its problem and the tensors of the file.
class GoldenCase {
 public:
  GoldenCase(const json::object& fields, const TensorSet& tensors)
      : name_(json::value_to<std::string>(fields.at("name"))), tensors_(tensors) {
    problem_.struct_size = sizeof problem_;
    problem_.device_type = HEDDLE_DEVICE_CPU;
    problem_.dtype = HEDDLE_DTYPE_F32;
    problem_.mask = HEDDLE_MASK_CAUSAL;
    problem_.align_bytes = 4;
    const auto integer = [&](const char* key) { return fields.at(key).to_number<int64_t>(); };
    problem_.batch = integer("B");
    problem_.q_len = integer("Tq");
    problem_.k_len = integer("Tk");
    problem_.n_head = static_cast<int32_t>(integer("n_head"));
    problem_.n_kv_head = static_cast<int32_t>(integer("n_kv_head"));
    problem_.head_dim = static_cast<int32_t>(integer("head_dim"));
    problem_.scale = fields.at("scale").to_number<float>();
    problem_.window_left = integer("window_left");
    problem_.q_pos0 = integer("q_pos0");
    problem_.k_pos0 = integer("k_pos0");
    const auto strides = [&](int64_t len, int64_t heads) {
      return heddle_strides{len * heads * problem_.head_dim, heads * problem_.head_dim,
                            problem_.head_dim};
    };
    problem_.q = problem_.out = strides(problem_.q_len, problem_.n_head);
    problem_.k = problem_.v = strides(problem_.k_len, problem_.n_kv_head);
    problem_.lse_stride_batch = problem_.n_head * problem_.q_len;
    problem_.lse_stride_head = problem_.q_len;
  }

  const std::string& name() const { return name_; }
  heddle_attention_problem problem(uint32_t op) const {
    heddle_attention_problem p = problem_;
    p.op = op;
    if (op == HEDDLE_OP_FORWARD) p.flags = HEDDLE_FLAG_LSE_OUT;
    if (op == HEDDLE_OP_BACKWARD) {
      p.dout = p.dq = p.q;
      p.dk = p.dv = p.k;
    }
    p.required_features = heddle_attention_required_features(&p);
    return p;
  }
  std::vector<float> tensor(const std::string& key) const {
    return tensors_.tensor(name_ + "/" + key).to_f32();
  }

 private:
  std::string name_;
  const TensorSet& tensors_;
  heddle_attention_problem problem_{};
};

// Runs one operation with poisoned outputs and workspace.
void run(const PluginContext& context, const heddle_attention_problem& problem,
         heddle_attention_call call) {
  const QueryAnswer answer = context.query(problem);
  ASSERT_TRUE(answer.supported) << answer.refusal;
  std::vector<unsigned char> workspace(answer.workspace_bytes + answer.workspace_align, 0xff);
  const auto at = reinterpret_cast<uintptr_t>(workspace.data());
  call.struct_size = sizeof call;
  call.workspace =
      reinterpret_cast<void*>((at + answer.workspace_align - 1) & ~(answer.workspace_align - 1));
  call.workspace_bytes = answer.workspace_bytes;
  ASSERT_EQ(context.run(problem, call), uint32_t{HEDDLE_OK});
}

// ||error|| <= 5e-6 max(||reference||, 1)
void expect_close(const std::vector<float>& got, const std::vector<float>& want,
                  const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double error = 0.0, norm = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double e = static_cast<double>(got[i]) - want[i];
    error += e * e;
    norm += static_cast<double>(want[i]) * want[i];
  }
  EXPECT_LE(std::sqrt(error), 5e-6 * std::max(std::sqrt(norm), 1.0)) << what;
}

void expect_lse(const std::vector<float>& got, const std::vector<float>& want,
                const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isinf(want[i])) {
      EXPECT_EQ(got[i], want[i]) << what << " element " << i;
    } else {
      EXPECT_NEAR(got[i], want[i], 1e-5 + 2e-6 * std::abs(want[i])) << what << " element " << i;
    }
  }
}

void check_case(const PluginContext& context, const GoldenCase& golden) {
  const std::vector<float> q = golden.tensor("q"), k = golden.tensor("k"), v = golden.tensor("v"),
                           dout = golden.tensor("do"), want_lse = golden.tensor("lse");
  const float poison = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> out(q.size(), poison), lse(want_lse.size(), poison);
  heddle_attention_call call{};
  call.q = q.data();
  call.k = k.data();
  call.v = v.data();
  call.out = out.data();
  call.lse = lse.data();
  run(context, golden.problem(HEDDLE_OP_FORWARD), call);
  expect_close(out, golden.tensor("o"), golden.name() + "/o");
  expect_lse(lse, want_lse, golden.name() + "/lse");

  std::vector<float> dq(q.size(), poison), dk(k.size(), poison), dv(v.size(), poison);
  call.dout = dout.data();
  call.dq = dq.data();
  call.dk = dk.data();
  call.dv = dv.data();
  run(context, golden.problem(HEDDLE_OP_BACKWARD), call);
  expect_close(dq, golden.tensor("dq"), golden.name() + "/dq");
  expect_close(dk, golden.tensor("dk"), golden.name() + "/dk");
  expect_close(dv, golden.tensor("dv"), golden.name() + "/dv");
}

class GoldenAttention : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenAttention, AllProblems) {
  const PluginContext context(PluginLibrary::load(GetParam()), cpu_plugin_device());
  const SafetensorsFile tensors(kGolden + ".safetensors");
  const json::value cases = json::read_file(kGolden + ".json");
  ASSERT_EQ(cases.as_array().size(), 16u);
  for (const json::value& fields : cases.as_array()) {
    check_case(context, GoldenCase(fields.as_object(), tensors));
  }
}

INSTANTIATE_TEST_SUITE_P(Plugins, GoldenAttention,
                         ::testing::Values(HEDDLE_FIXTURES "/naive.so", HEDDLE_CPU_SDPA),
                         [](const auto& instance) {
                           return std::filesystem::path(instance.param).stem().string();
                         });

}  // namespace
}  // namespace heddle
