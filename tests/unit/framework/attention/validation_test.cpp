// attention.validate: finds what a probe cannot, names where, and leaves right backends alone.
#include "framework/attention/validation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "framework/core/buffer.h"
#include "framework/core/rng.h"
#include "tests/unit/framework/attention/fixtures.h"

namespace heddle {
namespace {

using test::Environment;
using test::error_of;
using test::fixture;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr AttentionLayerKind kKind{4, 2, 8, 6};
constexpr int64_t kBatch = 2, kTokens = 13;
constexpr int64_t kPad = 3;  // elements between rows that belong to nobody

AttentionLayout padded_layout() {
  AttentionLayout l;
  l.q_row = l.out_row = l.dq_row = l.dout_row = kKind.n_head * kKind.head_dim + kPad;
  l.k_row = l.v_row = l.dk_row = l.dv_row = kKind.n_kv_head * kKind.head_dim + kPad;
  return l;
}

std::vector<float> noise(uint64_t seed) {
  std::vector<float> x(kBatch * kTokens * (kKind.n_head * kKind.head_dim + kPad));
  Rng rng(seed, "noise");
  for (float& value : x) value = rng.uniform() - 0.5f;
  return x;
}

// Every tensor of a call.
struct Tensors {
  std::vector<float> q = noise(1), k = noise(2), v = noise(3), dout = noise(4);
  std::vector<float> out = noise(5), dq = noise(6), dk = noise(7), dv = noise(8);
  std::vector<float> lse = std::vector<float>(kBatch * kTokens * 4);
  std::vector<int32_t> kv_len = {13, 4};
};

heddle_attention_call call_of(Tensors& t, const HostBuffer& workspace) {
  heddle_attention_call c{};
  c.q = t.q.data();
  c.k = t.k.data();
  c.v = t.v.data();
  c.out = t.out.data();
  c.lse = t.lse.data();
  c.dout = t.dout.data();
  c.dq = t.dq.data();
  c.dk = t.dk.data();
  c.dv = t.dv.data();
  c.kv_len = t.kv_len.data();
  c.workspace = workspace.data();
  c.workspace_bytes = workspace.bytes();
  return c;
}

// A plugin of this process, unprobed, with a validated binding per problem.
class Validated {
 public:
  explicit Validated(const std::string& path, int64_t every = 1)
      : context_(PluginLibrary::load(path), cpu_plugin_device()), every_(every) {}

  ValidatedAttention& bind(uint32_t op, int64_t tokens = kTokens) {
    heddle_attention_problem p =
        make_attention_problem(kKind, op, kBatch, op == HEDDLE_OP_DECODE ? 1 : tokens, tokens,
                               padded_layout(), op == HEDDLE_OP_FORWARD);
    p.align_bytes = 4;
    bindings_.push_back(std::make_unique<Binding>(context_, device_, p, p, context_.query(p)));
    validated_.push_back(std::make_unique<ValidatedAttention>(*bindings_.back(), label_, every_));
    return *validated_.back();
  }
  void run(ValidatedAttention& bound, Tensors& t) {
    const HostBuffer workspace(bound.workspace_bytes(), "workspace");
    bound.run(call_of(t, workspace));
  }
  Binding& binding(size_t i) { return *bindings_[i]; }

  AttentionLabel label_;

 private:
  test::PlainDevice device_;
  PluginContext context_;
  int64_t every_;
  std::vector<std::unique_ptr<Binding>> bindings_;
  std::vector<std::unique_ptr<ValidatedAttention>> validated_;
};

TEST(Validation, RightBackendsGiveTheSameResults) {
  for (const std::string& path : {std::string(HEDDLE_CPU_SDPA), fixture("naive")}) {
    Validated plugin(path);
    Tensors seen, plain;
    for (const uint32_t op : {HEDDLE_OP_FORWARD, HEDDLE_OP_BACKWARD, HEDDLE_OP_DECODE}) {
      ValidatedAttention& bound = plugin.bind(op);
      for (int n = 0; n < 5; ++n) plugin.run(bound, seen);  // every head comes to be compared
      const HostBuffer workspace(bound.workspace_bytes(), "workspace");
      plugin.binding(op - HEDDLE_OP_FORWARD).run(call_of(plain, workspace));
    }
    EXPECT_EQ(seen.out, plain.out);
    EXPECT_EQ(seen.lse, plain.lse);
    EXPECT_EQ(seen.dq, plain.dq);
    EXPECT_EQ(seen.dk, plain.dk);
    EXPECT_EQ(seen.dv, plain.dv);
  }
}

TEST(Validation, WrongNumbersAreFoundAtTheNextComparison) {
  Validated plugin(fixture("later_numbers"), 5);
  ValidatedAttention& forward = plugin.bind(HEDDLE_OP_FORWARD);
  Tensors t;
  plugin.label_ = {17, 3};
  for (int n = 0; n < 15; ++n)
    plugin.run(forward, t);  // wrong from the 13th, looked at at the 16th
  const std::string text = error_of([&] { plugin.run(forward, t); });
  EXPECT_THAT(text, HasSubstr("backend 'later_numbers' (kernel later_numbers_loops), step 17, "
                              "layer 3, call 16 of forward B 2 T 13"));
  // The fourth comparison: batch row 1, kv head 1, whose group begins with query head 2.
  EXPECT_THAT(text, HasSubstr("differs from kernels/reference, first in out (b 1, token 0, head 2, "
                              "dim "));
  EXPECT_THAT(text, HasSubstr("expected"));
}

TEST(Validation, ValuesThatAreNotFiniteAreFoundAtOnce) {
  Validated plugin(fixture("later_nan"), 1000);
  ValidatedAttention& forward = plugin.bind(HEDDLE_OP_FORWARD);
  Tensors t;
  plugin.run(forward, t);
  plugin.run(forward, t);
  EXPECT_THAT(error_of([&] { plugin.run(forward, t); }),
              HasSubstr("out (b 0, token 0, head 0, dim 0) is nan, though every input is finite"));
}

TEST(Validation, RowsThatAreNotWrittenAreFound) {
  Validated plugin(fixture("later_nothing"), 1000);
  ValidatedAttention& forward = plugin.bind(HEDDLE_OP_FORWARD);
  Tensors t;
  plugin.run(forward, t);
  plugin.run(forward, t);
  EXPECT_THAT(error_of([&] { plugin.run(forward, t); }),
              HasSubstr("out (b 0, token 0, head 0, dim 0) was not written"));
}

TEST(Validation, WritesBetweenRowsAreFound) {
  Validated plugin(fixture("later_stray"), 1000);
  ValidatedAttention& forward = plugin.bind(HEDDLE_OP_FORWARD);
  Tensors t;
  plugin.run(forward, t);
  plugin.run(forward, t);
  EXPECT_THAT(error_of([&] { plugin.run(forward, t); }),
              HasSubstr("out is written outside its rows, at element 34 from its start"));
}

TEST(Validation, WritesBehindTheWorkspaceAreFound) {
  Validated plugin(fixture("overrun"));
  ValidatedAttention& forward = plugin.bind(HEDDLE_OP_FORWARD);
  Tensors t;
  EXPECT_THAT(error_of([&] { plugin.run(forward, t); }),
              HasSubstr("the workspace of 100 bytes, as query() promised, is written at byte 0 "
                        "behind its end"));
}

TEST(Validation, WritesAfterTheReturnAreFound) {
  Validated plugin(fixture("after_return"));
  ValidatedAttention &first = plugin.bind(HEDDLE_OP_FORWARD),
                     &second = plugin.bind(HEDDLE_OP_FORWARD, 9);
  Tensors t;
  plugin.run(first, t);
  plugin.run(second, t);  // writes to the output of `first`
  EXPECT_THAT(error_of([&] { plugin.run(first, t); }),
              HasSubstr("out is written outside its rows, at element 0 from its start, after an "
                        "earlier call had returned"));
}

TEST(Validation, InputsThatAreNotFiniteAreTheModelsFault) {
  Validated plugin(fixture("naive"));
  ValidatedAttention& backward = plugin.bind(HEDDLE_OP_BACKWARD);
  ValidatedAttention& decode = plugin.bind(HEDDLE_OP_DECODE);
  Tensors t;
  const int64_t row = kKind.n_head * kKind.head_dim + kPad;
  t.dout[static_cast<size_t>(2 * row + kKind.head_dim + 5)] =
      std::numeric_limits<float>::infinity();
  EXPECT_THAT(error_of([&] { plugin.run(backward, t); }, ExitCode::kNumerics),
              HasSubstr("the input dout (b 0, token 2, head 1, dim 5) is inf before the backend"));
  // Row 1 of the cache holds 4 tokens: what lies behind them is nobody's concern.
  const size_t behind =
      kTokens * kKind.n_kv_head * kKind.head_dim + 4 * kKind.n_kv_head * kKind.head_dim;
  t.k[behind] = t.v[behind] = std::numeric_limits<float>::quiet_NaN();
  plugin.run(decode, t);
  t.k[behind - 1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(error_of([&] { plugin.run(decode, t); }, ExitCode::kNumerics),
              HasSubstr("the input k (b 1, token 3, head 1, dim 7) is nan"));
}

class ValidationSwitch : public ::testing::Test {
 protected:
  bool validates(const AttentionConfig& config) {
    const auto host = AttentionHost::create(config, device_);
    host->select({kKind}, kBatch, kTokens, padded_layout());
    BoundAttention& bound = host->bind_forward(kKind, kBatch, kTokens, padded_layout(), true);
    return dynamic_cast<ValidatedAttention*>(&bound) != nullptr;
  }
  Environment program_{"HEDDLE_PROBE_EXE", HEDDLE_PROBE_PROGRAM};
  AttentionConfig config_ = test::config_with("naive", {fixture("naive")});
  test::PlainDevice device_;
};

TEST_F(ValidationSwitch, NothingStandsBetweenWhenOff) {
  EXPECT_FALSE(validates(config_));
}

TEST_F(ValidationSwitch, ConfigurationTurnsItOn) {
  config_.validate = true;
  EXPECT_TRUE(validates(config_));
}

TEST_F(ValidationSwitch, EnvironmentTurnsItOn) {
  {
    const Environment on("HEDDLE_VALIDATE", "1");
    EXPECT_TRUE(validates(config_));
  }
  {
    const Environment off("HEDDLE_VALIDATE", "0");
    EXPECT_FALSE(validates(config_));
  }
  const Environment wrong("HEDDLE_VALIDATE", "yes");
  EXPECT_THAT(error_of([&] { validates(config_); }, ExitCode::kEnvironment),
              HasSubstr("HEDDLE_VALIDATE is 'yes', expected 0 or 1"));
}

}  // namespace
}  // namespace heddle
