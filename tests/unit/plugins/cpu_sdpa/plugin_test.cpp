// cpu_sdpa as a host meets it: loaded at run time, through the ABI alone.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "plugins/abi/heddle_attention.h"
#include "tests/unit/support/golden_attention.h"

namespace heddle {
namespace {

using testing::GoldenAttention;

// A host with plain threads, one per range.
struct TestHost {
  uint32_t workers = 1;
  std::string log;
  heddle_host table{};

  explicit TestHost(uint32_t count) : workers(count) {
    table.struct_size = sizeof(table);
    table.name = "test";
    table.version = "0";
    table.user = this;
    table.log = [](void* user, uint32_t, const char* text) {
      static_cast<TestHost*>(user)->log += text;
    };
    table.num_workers = [](void* user) { return static_cast<TestHost*>(user)->workers; };
    table.parallel_for = [](void* user, int64_t n, int64_t grain, heddle_parallel_body body,
                            void* arg) {
      const int64_t pieces = static_cast<TestHost*>(user)->workers;
      const int64_t piece = std::max(grain, (n + pieces - 1) / pieces);
      std::vector<std::thread> threads;
      for (int64_t w = 0; w * piece < n; ++w) {
        threads.emplace_back(
            [=] { body(arg, w * piece, std::min(n, (w + 1) * piece), static_cast<uint32_t>(w)); });
      }
      for (std::thread& t : threads) t.join();
    };
  }
};

const heddle_attention_plugin& plugin(const heddle_host& host) {
  void* library = dlopen(HEDDLE_CPU_SDPA, RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(dlerror());
  const auto entry =
      reinterpret_cast<heddle_attention_entry_v1>(dlsym(library, HEDDLE_ATTENTION_ENTRY));
  return *entry(&host, nullptr);
}

struct Context {
  TestHost host;
  const heddle_attention_plugin& table;
  heddle_attention_ctx* ctx = nullptr;

  explicit Context(uint32_t workers = 1) : host(workers), table(plugin(host.table)) {
    heddle_device device{};
    device.struct_size = sizeof(device);
    device.type = HEDDLE_DEVICE_CPU;
    device.units = workers;
    device.peak_flops = 1e11;
    EXPECT_EQ(table.create(&host.table, &device, &ctx, nullptr), HEDDLE_OK);
  }
  ~Context() { table.destroy(ctx); }
};

heddle_attention_problem problem_of(const GoldenAttention& g, uint32_t op) {
  heddle_attention_problem p{};
  p.struct_size = sizeof(p);
  p.op = op;
  p.device_type = HEDDLE_DEVICE_CPU;
  p.dtype = HEDDLE_DTYPE_F32;
  p.mask = HEDDLE_MASK_CAUSAL;
  p.flags = HEDDLE_FLAG_LSE_OUT | HEDDLE_FLAG_DETERMINISTIC;
  p.align_bytes = 4;
  p.batch = g.batch;
  p.q_len = g.q_len;
  p.k_len = g.k_len;
  p.n_head = static_cast<int32_t>(g.n_head);
  p.n_kv_head = static_cast<int32_t>(g.n_kv_head);
  p.head_dim = static_cast<int32_t>(g.head_dim);
  p.scale = g.scale;
  p.window_left = g.window_left;
  p.q_pos0 = g.q_pos0;
  p.k_pos0 = g.k_pos0;
  p.q = p.out = p.dout =
      p.dq = {g.q_len * g.n_head * g.head_dim, g.n_head * g.head_dim, g.head_dim};
  p.k = p.v = p.dk =
      p.dv = {g.k_len * g.n_kv_head * g.head_dim, g.n_kv_head * g.head_dim, g.head_dim};
  p.lse_stride_head = g.q_len;
  p.lse_stride_batch = g.n_head * g.q_len;
  p.required_features = heddle_attention_required_features(&p);
  return p;
}

heddle_attention_verdict ask(const Context& c, const heddle_attention_problem& p,
                             std::vector<heddle_attention_reason>* reasons = nullptr) {
  heddle_attention_verdict verdict{};
  verdict.struct_size = sizeof(verdict);
  if (reasons) {
    reasons->assign(8, heddle_attention_reason{});
    verdict.reasons = reasons->data();
    verdict.reason_capacity = 8;
  }
  EXPECT_EQ(c.table.query(c.ctx, &p, &verdict), HEDDLE_OK);
  if (reasons) reasons->resize(std::min<size_t>(8, verdict.reason_count));
  return verdict;
}

// Memory at a multiple of `align`, all NaN.
std::shared_ptr<void> workspace(uint64_t bytes, uint64_t align) {
  const uint64_t rounded = (bytes + align) / align * align;
  std::shared_ptr<void> memory(std::aligned_alloc(align, rounded), std::free);
  std::memset(memory.get(), 0xFF, rounded);
  return memory;
}

struct Result {
  std::vector<float> out, lse, dq, dk, dv;
  bool operator==(const Result&) const = default;
};

// Forward, then backward with the plugin's own out and lse.
Result run(const Context& c, const GoldenAttention& g, uint64_t max_workspace = 0) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Result r{std::vector<float>(g.out.size(), nan), std::vector<float>(g.lse.size(), nan),
           std::vector<float>(g.dq.size(), nan), std::vector<float>(g.dk.size(), nan),
           std::vector<float>(g.dv.size(), nan)};
  char message[256] = "";
  heddle_text text{message, sizeof(message), 0};
  heddle_attention_call call{};
  call.struct_size = sizeof(call);
  call.q = g.q.data();
  call.k = g.k.data();
  call.v = g.v.data();
  call.out = r.out.data();
  call.lse = r.lse.data();
  call.dout = g.dout.data();
  call.dq = r.dq.data();
  call.dk = r.dk.data();
  call.dv = r.dv.data();
  call.err = &text;
  for (const uint32_t op : {HEDDLE_OP_FORWARD, HEDDLE_OP_BACKWARD}) {
    heddle_attention_problem p = problem_of(g, op);
    p.max_workspace = max_workspace;
    const heddle_attention_verdict verdict = ask(c, p);
    EXPECT_TRUE(verdict.supported);
    EXPECT_LE(verdict.workspace_bytes, max_workspace ? max_workspace : UINT64_MAX);
    const auto memory = workspace(verdict.workspace_bytes, verdict.workspace_align);
    call.workspace = memory.get();
    call.workspace_bytes = verdict.workspace_bytes;
    const auto function = op == HEDDLE_OP_FORWARD ? c.table.forward : c.table.backward;
    EXPECT_EQ(function(c.ctx, &p, &call), HEDDLE_OK) << message;
  }
  return r;
}

TEST(CpuSdpa, Table) {
  const Context c;
  EXPECT_EQ(c.table.magic, HEDDLE_ATTENTION_MAGIC);
  EXPECT_EQ(c.table.abi_major, HEDDLE_ATTENTION_ABI_MAJOR);
  EXPECT_EQ(c.table.struct_size, sizeof(heddle_attention_plugin));
  EXPECT_EQ(c.table.problem_size, sizeof(heddle_attention_problem));
  EXPECT_EQ(c.table.call_size, sizeof(heddle_attention_call));
  EXPECT_STREQ(c.table.name, "cpu_sdpa");
  EXPECT_EQ(c.table.device_type, static_cast<uint32_t>(HEDDLE_DEVICE_CPU));
}

TEST(CpuSdpa, Golden) {
  for (const char* isa : {"baseline", "avx2", "avx512_logic", "avx512"}) {
    setenv("HEDDLE_CPU_ISA", isa, 1);
    const Context c(2);
    unsetenv("HEDDLE_CPU_ISA");
    if (!c.host.log.empty()) continue;  // not on this machine, as the log says
    for (const GoldenAttention& g : testing::load_golden_attention()) {
      SCOPED_TRACE(std::string(isa) + " " + g.name);
      const Result r = run(c, g);
      testing::expect_golden("out", r.out, g.out);
      testing::expect_golden_lse(r.lse, g.lse);
      testing::expect_golden("dq", r.dq, g.dq);
      testing::expect_golden("dk", r.dk, g.dk);
      testing::expect_golden("dv", r.dv, g.dv);
    }
  }
}

GoldenAttention long_problem() {
  GoldenAttention g;
  g.batch = 1;
  g.q_len = g.k_len = 600;
  g.n_head = 4;
  g.n_kv_head = 2;
  g.head_dim = 24;
  g.window_left = 250;
  g.q_pos0 = g.k_pos0 = 0;
  g.scale = 0.2f;
  const auto wave = [](int64_t n, float phase) {
    std::vector<float> x(static_cast<size_t>(n));
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(1.7f * static_cast<float>(i) + phase);
    return x;
  };
  g.q = wave(600 * 4 * 24, 0.1f);
  g.k = wave(600 * 2 * 24, 0.2f);
  g.v = wave(600 * 2 * 24, 0.3f);
  g.dout = wave(600 * 4 * 24, 0.4f);
  g.out = g.dq = g.q;
  g.dk = g.dv = g.k;
  g.lse = std::vector<float>(4 * 600);
  return g;
}

TEST(CpuSdpa, SameBitsForAnyNumberOfWorkers) {
  const GoldenAttention g = long_problem();
  const Result one = run(Context(1), g);
  for (const uint32_t workers : {2u, 3u, 5u, 16u, 64u}) {
    EXPECT_TRUE(run(Context(workers), g) == one) << workers << " workers";
  }
}

TEST(CpuSdpa, FewerWorkersFitASmallerWorkspace) {
  const GoldenAttention g = long_problem();
  const Context one(1), many(8);
  const auto need = [&](const Context& c, uint32_t op) {
    return ask(c, problem_of(g, op)).workspace_bytes;
  };
  const uint64_t enough_for_one =
      std::max(need(one, HEDDLE_OP_FORWARD), need(one, HEDDLE_OP_BACKWARD));
  EXPECT_LT(enough_for_one, need(many, HEDDLE_OP_BACKWARD));
  EXPECT_TRUE(run(many, g, enough_for_one) == run(one, g));

  heddle_attention_problem p = problem_of(g, HEDDLE_OP_BACKWARD);
  p.max_workspace = 1000;
  std::vector<heddle_attention_reason> reasons;
  EXPECT_FALSE(ask(many, p, &reasons).supported);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].code, static_cast<uint32_t>(HEDDLE_REASON_WORKSPACE));
}

TEST(CpuSdpa, RefusesWithReasons) {
  struct Row {
    std::function<void(heddle_attention_problem&)> change;
    uint32_t code;
    const char* field;
  };
  const std::vector<Row> rows = {
      {[](auto& p) { p.device_type = HEDDLE_DEVICE_CUDA; }, HEDDLE_REASON_DEVICE, "device_type"},
      {[](auto& p) { p.dtype = HEDDLE_DTYPE_BF16; }, HEDDLE_REASON_DTYPE, "dtype"},
      {[](auto& p) { p.op = 9; }, HEDDLE_REASON_OP, "op"},
      {[](auto& p) { p.mask = 7; }, HEDDLE_REASON_MASK, "mask"},
      {[](auto& p) { p.head_dim = 257; }, HEDDLE_REASON_HEAD_DIM, "head_dim"},
      {[](auto& p) { p.head_dim = 0; }, HEDDLE_REASON_HEAD_DIM, "head_dim"},
      {[](auto& p) {
         p.n_head = 33;
         p.n_kv_head = 2;
       },
       HEDDLE_REASON_HEADS, "n_kv_head"},
      {[](auto& p) { p.n_kv_head = 0; }, HEDDLE_REASON_HEADS, "n_kv_head"},
      {[](auto& p) { p.n_kv_head = 8; }, HEDDLE_REASON_HEADS, "n_kv_head"},
      {[](auto& p) { p.window_left = -2; }, HEDDLE_REASON_WINDOW, "window_left"},
      {[](auto& p) { p.q_len = -1; }, HEDDLE_REASON_LENGTH, "q_len"},
      {[](auto& p) { p.k_pos0 = INT64_MAX; }, HEDDLE_REASON_POSITION, "k_pos0"},
      {[](auto& p) {
         p.op = HEDDLE_OP_DECODE;
         p.q_pos0 = 3;
       },
       HEDDLE_REASON_POSITION, "q_pos0"},
      {[](auto& p) { p.required_features |= 1u << 20; }, HEDDLE_REASON_FEATURE,
       "required_features"},
      {[](auto& p) { p.flags = 16; }, HEDDLE_REASON_FEATURE, "flags"},
      {[](auto& p) { p.align_bytes = 2; }, HEDDLE_REASON_ALIGNMENT, "align_bytes"},
  };
  const Context c;
  for (const Row& row : rows) {
    SCOPED_TRACE(row.field);
    heddle_attention_problem p = problem_of(long_problem(), HEDDLE_OP_FORWARD);
    row.change(p);
    std::vector<heddle_attention_reason> reasons;
    EXPECT_FALSE(ask(c, p, &reasons).supported);
    ASSERT_EQ(reasons.size(), 1u);
    EXPECT_EQ(reasons[0].code, row.code);
    EXPECT_STREQ(reasons[0].field, row.field);
    EXPECT_NE(reasons[0].got[0], '\0');
    EXPECT_NE(reasons[0].want[0], '\0');
    // Without room for reasons they are still counted.
    EXPECT_EQ(ask(c, p).reason_count, 1u);
  }
}

TEST(CpuSdpa, EstimatesFollowTheWork) {
  const Context one(1), four(4);
  GoldenAttention g = long_problem();
  g.q_len = g.k_len = 4096;
  g.window_left = -1;
  const auto estimate = [](const Context& c, const GoldenAttention& problem, uint32_t op) {
    const heddle_attention_verdict verdict = ask(c, problem_of(problem, op));
    EXPECT_TRUE(verdict.supported);
    EXPECT_NE(verdict.kernel[0], '\0');
    return verdict.est_time_us;
  };
  const double full = estimate(one, g, HEDDLE_OP_FORWARD);
  EXPECT_GT(estimate(one, g, HEDDLE_OP_BACKWARD), 2.0 * full);
  g.window_left = 1024;
  const double quarter = estimate(one, g, HEDDLE_OP_FORWARD);
  EXPECT_NEAR(quarter / full, 0.4375, 0.03);
}

TEST(CpuSdpa, Decode) {
  GoldenAttention g = long_problem();  // tokens 0..599 of one sequence; the last three are decoded
  g.window_left = 300;
  const Context c(2);
  const Result whole = run(c, g);
  const int64_t row = g.n_head * g.head_dim;
  heddle_attention_problem p = problem_of(g, HEDDLE_OP_DECODE);
  p.q_len = 3;
  p.lse_stride_head = 3;
  p.lse_stride_batch = 3 * g.n_head;
  p.required_features = heddle_attention_required_features(&p);
  const heddle_attention_verdict verdict = ask(c, p);
  ASSERT_TRUE(verdict.supported);
  const auto memory = workspace(verdict.workspace_bytes, verdict.workspace_align);
  std::vector<float> out(static_cast<size_t>(3 * row)), lse(static_cast<size_t>(3 * g.n_head));
  char message[256] = "";
  heddle_text text{message, sizeof(message), 0};
  int32_t kv_len = 600;
  heddle_attention_call call{};
  call.struct_size = sizeof(call);
  call.q = g.q.data() + 597 * row;
  call.k = g.k.data();
  call.v = g.v.data();
  call.out = out.data();
  call.lse = lse.data();
  call.kv_len = &kv_len;
  call.workspace = memory.get();
  call.workspace_bytes = verdict.workspace_bytes;
  call.err = &text;
  ASSERT_EQ(c.table.decode(c.ctx, &p, &call), HEDDLE_OK) << message;
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_NEAR(out[i], whole.out[static_cast<size_t>(597 * row) + i], 1e-5);
  }
  kv_len = 601;
  EXPECT_EQ(c.table.decode(c.ctx, &p, &call), HEDDLE_INVALID_ARG);
  EXPECT_STREQ(message, "kv_len[0]: got 601, expected 0..600");
}

TEST(CpuSdpa, BrokenCallsAreRefused) {
  const Context c;
  const GoldenAttention g = long_problem();
  const heddle_attention_problem p = problem_of(g, HEDDLE_OP_FORWARD);
  const heddle_attention_verdict verdict = ask(c, p);
  const auto memory = workspace(verdict.workspace_bytes, verdict.workspace_align);
  Result r{g.q, g.lse, {}, {}, {}};
  char message[8] = "";  // a short buffer is filled, never overrun
  heddle_text text{message, sizeof(message), 0};
  heddle_attention_call call{};
  call.struct_size = sizeof(call);
  call.q = g.q.data();
  call.k = g.k.data();
  call.out = r.out.data();
  call.lse = r.lse.data();
  call.workspace = memory.get();
  call.workspace_bytes = verdict.workspace_bytes;
  call.err = &text;
  EXPECT_EQ(c.table.forward(c.ctx, &p, &call), HEDDLE_INVALID_ARG);  // no v
  EXPECT_EQ(message[7], '\0');
  EXPECT_GT(text.len, 8u);
  call.v = g.v.data();
  call.workspace_bytes = 64;
  EXPECT_EQ(c.table.forward(c.ctx, &p, &call), HEDDLE_INVALID_ARG);
  call.workspace_bytes = verdict.workspace_bytes;
  EXPECT_EQ(c.table.backward(c.ctx, &p, &call), HEDDLE_INVALID_ARG);  // op says forward
  call.struct_size = 16;
  EXPECT_EQ(c.table.forward(c.ctx, &p, &call), HEDDLE_INVALID_ARG);
  EXPECT_EQ(r.out, g.q);  // nothing was written
}

TEST(CpuSdpa, UnknownIsaIsLogged) {
  setenv("HEDDLE_CPU_ISA", "sse9", 1);
  const Context c;
  unsetenv("HEDDLE_CPU_ISA");
  EXPECT_NE(c.host.log.find("HEDDLE_CPU_ISA=sse9"), std::string::npos);
}

}  // namespace
}  // namespace heddle
