// heddle_attention.hpp: what it promises to the author of a backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <heddle/heddle_attention.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace heddle::attention {
namespace {

using ::testing::HasSubstr;
using ::testing::StrEq;

// Runs two pieces of at most half the range, one after the other.
void run_in_pieces(void*, int64_t n, int64_t, heddle_parallel_body body, void* arg) {
  body(arg, 0, n / 2, 0);
  body(arg, n / 2, n, 1);
}
uint32_t two_workers(void*) {
  return 2;
}
void log_nothing(void*, uint32_t, const char*) {}

const heddle_host kHost = {sizeof(heddle_host), 0,           "test",       "1", nullptr,
                           log_nothing,         two_workers, run_in_pieces};

heddle_attention_problem problem_of(uint32_t op) {
  heddle_attention_problem p{};
  p.struct_size = sizeof p;
  p.op = op;
  p.device_type = HEDDLE_DEVICE_CPU;
  p.dtype = HEDDLE_DTYPE_F32;
  p.mask = HEDDLE_MASK_CAUSAL;
  p.align_bytes = 4;
  p.batch = 2;
  p.q_len = p.k_len = 4;
  p.n_head = 6;
  p.n_kv_head = 2;
  p.head_dim = 3;
  p.scale = 1.0f;
  p.window_left = -1;
  return p;
}

// Throws what its name says; has no decode.
struct Thrower {
  static inline int mode = 0;
  Thrower(Host, const heddle_device&) {
    if (mode == 1) throw Failure(HEDDLE_REFUSED, "needs %d cores", 64);
  }
  void query(const Problem& p, Answer& answer) const {
    answer.workspace(1000, p);
    answer.kernel("thrower");
  }
  void forward(const Call&) {
    if (mode == 2) throw std::runtime_error("disk on fire");
    if (mode == 3) throw Failure(HEDDLE_DEVICE_ERROR, "lost %s", "it");
    if (mode == 4) throw 7;
    Host(&kHost).parallel_for(10, 1, [](int64_t, int64_t end, uint32_t) {
      if (mode == 5 && end == 10) throw std::runtime_error("in a body");
    });
  }
  void backward(const Call&) {}
};

class HelperTest : public ::testing::Test {
 protected:
  HelperTest() { Thrower::mode = 0; }

  uint32_t create(heddle_attention_ctx** ctx, uint32_t device_type = HEDDLE_DEVICE_CPU) {
    heddle_device device{};
    device.struct_size = sizeof device;
    device.type = device_type;
    return table_.create(&kHost, &device, ctx, &err_);
  }
  heddle_attention_call call() {
    heddle_attention_call c{};
    c.struct_size = sizeof c;
    c.q = c.k = c.v = floats_.data();
    c.out = floats_.data();
    c.lse = floats_.data();
    c.err = &err_;
    return c;
  }
  uint32_t forward(const heddle_attention_call& c) {
    heddle_attention_ctx* ctx = nullptr;
    EXPECT_EQ(create(&ctx), uint32_t{HEDDLE_OK});
    const heddle_attention_problem p = problem_of(HEDDLE_OP_FORWARD);
    const uint32_t status = table_.forward(ctx, &p, &c);
    table_.destroy(ctx);
    return status;
  }

  const heddle_attention_plugin table_ =
      make_table<Thrower>({.name = "thrower", .version = "1", .description = "throws"});
  std::vector<float> floats_ = std::vector<float>(200);
  char text_[64] = "";
  heddle_text err_{text_, sizeof text_, 0};
};

TEST_F(HelperTest, FunctionsThatTheClassLacksAreNull) {
  EXPECT_NE(table_.forward, nullptr);
  EXPECT_NE(table_.backward, nullptr);
  EXPECT_EQ(table_.decode, nullptr);
  EXPECT_EQ(table_.struct_size, sizeof(heddle_attention_plugin));
  EXPECT_EQ(table_.known_features, kFeatures10);
}

TEST_F(HelperTest, ExceptionsBecomeStatusAndText) {
  const std::pair<uint32_t, const char*> expected[] = {{HEDDLE_OK, ""},
                                                       {HEDDLE_OK, ""},  // 1 is the constructor's
                                                       {HEDDLE_INTERNAL, "disk on fire"},
                                                       {HEDDLE_DEVICE_ERROR, "lost it"},
                                                       {HEDDLE_INTERNAL, "unknown type"},
                                                       {HEDDLE_INTERNAL, "in a body"}};
  for (const int mode : {0, 2, 3, 4, 5}) {
    Thrower::mode = mode;
    text_[0] = '\0';
    EXPECT_EQ(forward(call()), expected[mode].first) << mode;
    EXPECT_THAT(text_, HasSubstr(expected[mode].second)) << mode;
  }
}

TEST_F(HelperTest, ConstructorRefusesTheMachine) {
  Thrower::mode = 1;
  heddle_attention_ctx* ctx = nullptr;
  EXPECT_EQ(create(&ctx), uint32_t{HEDDLE_REFUSED});
  EXPECT_THAT(text_, StrEq("needs 64 cores"));
  Thrower::mode = 0;
  EXPECT_EQ(create(&ctx, HEDDLE_DEVICE_CUDA), uint32_t{HEDDLE_REFUSED});
  EXPECT_THAT(text_, StrEq("device type is 2, expected 1"));
}

TEST_F(HelperTest, TextIsCutToTheBuffer) {
  Thrower::mode = 2;
  err_.cap = 5;
  std::memset(text_, 'x', sizeof text_);
  EXPECT_EQ(forward(call()), uint32_t{HEDDLE_INTERNAL});
  EXPECT_THAT(text_, StrEq("disk"));
  EXPECT_EQ(text_[5], 'x');
  EXPECT_EQ(err_.len, 12u);
}

TEST_F(HelperTest, MissingPointersAreNamed) {
  heddle_attention_call c = call();
  c.v = nullptr;
  EXPECT_EQ(forward(c), uint32_t{HEDDLE_INVALID_ARG});
  EXPECT_THAT(text_, StrEq("v is NULL, expected an address"));
}

TEST_F(HelperTest, AnswersCarryWorkspaceOrReasons) {
  heddle_attention_ctx* ctx = nullptr;
  ASSERT_EQ(create(&ctx), uint32_t{HEDDLE_OK});
  heddle_attention_problem p = problem_of(HEDDLE_OP_FORWARD);
  heddle_attention_reason reasons[1];
  heddle_attention_verdict v{};
  v.struct_size = sizeof v;
  v.reason_capacity = 1;
  v.reasons = reasons;
  ASSERT_EQ(table_.query(ctx, &p, &v), uint32_t{HEDDLE_OK});
  EXPECT_EQ(v.supported, 1u);
  EXPECT_EQ(v.workspace_bytes, 1000u);
  EXPECT_STREQ(v.kernel, "thrower");

  p.max_workspace = 999;
  ASSERT_EQ(table_.query(ctx, &p, &v), uint32_t{HEDDLE_OK});
  EXPECT_EQ(v.supported, 0u);
  EXPECT_EQ(reasons[0].code, uint32_t{HEDDLE_REASON_WORKSPACE});
  EXPECT_STREQ(reasons[0].want, ">=1000");

  p.window_left = -2;
  p.n_kv_head = 4;
  ASSERT_EQ(table_.query(ctx, &p, &v), uint32_t{HEDDLE_OK});
  EXPECT_EQ(v.supported, 0u);
  EXPECT_EQ(v.reason_count, 2u);  // though there is room for one
  EXPECT_STREQ(reasons[0].field, "n_kv_head");
  EXPECT_STREQ(reasons[0].got, "4");
  EXPECT_STREQ(reasons[0].want, "divides n_head");
  table_.destroy(ctx);
}

TEST(HelperProblem, RangesAgreeWithTheDefinition) {
  for (const uint32_t mask : {HEDDLE_MASK_NONE, HEDDLE_MASK_CAUSAL}) {
    for (const int64_t window : {INT64_C(-1), INT64_C(0), INT64_C(1), INT64_C(5), INT64_MAX}) {
      for (const int64_t q_pos0 : {-9, -2, 0, 3, 40}) {
        heddle_attention_problem raw = problem_of(HEDDLE_OP_FORWARD);
        raw.mask = mask;
        raw.window_left = window;
        raw.q_len = 7;
        raw.k_len = 5;
        raw.q_pos0 = q_pos0;
        const Problem p(&raw);
        for (int64_t i = 0; i < 7; ++i) {
          for (int64_t j = 0; j < 5; ++j) {
            const int64_t qp = q_pos0 + i;
            const bool seen =
                (mask == HEDDLE_MASK_NONE || j <= qp) && (window < 0 || qp - j <= window);
            const Range keys = p.keys_of_query(i), queries = p.queries_of_key(j);
            EXPECT_EQ(j >= keys.begin && j < keys.end, seen) << i << ' ' << j << ' ' << window;
            EXPECT_EQ(i >= queries.begin && i < queries.end, seen)
                << i << ' ' << j << ' ' << window;
          }
        }
      }
    }
  }
}

TEST(HelperProblem, DecodeCountsFromTheEndOfTheRow) {
  heddle_attention_problem raw = problem_of(HEDDLE_OP_DECODE);
  raw.q_len = 2;
  raw.k_len = 32;
  raw.window_left = 3;
  const Problem p(&raw);
  EXPECT_EQ(p.keys_of_query(1, 10).begin, 6);
  EXPECT_EQ(p.keys_of_query(1, 10).end, 10);
  EXPECT_EQ(p.keys_of_query(0, 1).end, 0);  // stands before the first token: sees nothing
  EXPECT_EQ(p.kv_head(5), 1);
  EXPECT_EQ(p.kv_head(2), 0);
}

TEST(HelperProblem, FieldsThatAnOlderHostLacksAreZero) {
  heddle_attention_problem raw = problem_of(HEDDLE_OP_FORWARD);
  raw.struct_size = HEDDLE_PROBLEM_SIZE_1_0;
  EXPECT_EQ(Problem(&raw)->max_workspace, 0u);
  raw.struct_size = HEDDLE_PROBLEM_SIZE_1_0 - 8;
  EXPECT_THROW(Problem{&raw}, Failure);
}

}  // namespace
}  // namespace heddle::attention
