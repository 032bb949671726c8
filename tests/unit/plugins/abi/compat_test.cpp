// The promises at the end of heddle_attention.h: old and new plugins in today's host, today's
// plugins in old and new hosts, and feature bits of the future.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "framework/attention/attention.h"
#include "framework/attention/plugin.h"
#include "framework/core/buffer.h"
#include "kernels/reference/attention.h"
#include "tests/unit/plugins/abi/host_1_0.h"

namespace heddle {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kTokens = 21, kWindow = 6, kBatch = 1;
constexpr int32_t kHeads = 3, kDim = 8;
constexpr size_t kSize = size_t{kTokens} * kHeads * kDim;

// Deterministic values in [-1, 1).
std::vector<float> values(uint32_t seed) {
  std::vector<float> x(kSize);
  uint32_t state = seed * 2654435761u + 1;
  for (float& value : x) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(state >> 8) / static_cast<float>(1 << 23) - 1.0f;
  }
  return x;
}

struct Forward {
  std::vector<float> q = values(1), k = values(2), v = values(3);
  std::vector<float> out = std::vector<float>(kSize), lse = std::vector<float>(kTokens * kHeads);
};

void expect_right(const Forward& f) {
  using kernels::reference::View;
  std::vector<float> out(kSize), lse(kTokens * kHeads);
  const auto strides = kernels::reference::contiguous(kTokens, kHeads, kDim);
  const auto view = [&](const std::vector<float>& x) {
    return View<const float>{x.data(), strides};
  };
  kernels::reference::AttentionShape shape;
  shape.q_len = shape.k_len = kTokens;
  shape.n_head = shape.n_kv_head = kHeads;
  shape.head_dim = kDim;
  shape.window_left = kWindow;
  kernels::reference::attention_forward<float>(shape, view(f.q), view(f.k), view(f.v),
                                               View<float>{out.data(), strides}, lse.data());
  for (size_t i = 0; i < kSize; ++i) ASSERT_NEAR(f.out[i], out[i], 1e-5) << "out " << i;
  for (size_t i = 0; i < lse.size(); ++i) ASSERT_NEAR(f.lse[i], lse[i], 1e-5) << "lse " << i;
}

heddle_attention_problem forward_problem() {
  const AttentionLayout rows{kHeads * kDim, kHeads * kDim, kHeads * kDim, kHeads * kDim};
  heddle_attention_problem p = make_attention_problem(
      {kHeads, kHeads, kDim, kWindow}, HEDDLE_OP_FORWARD, kBatch, kTokens, kTokens, rows, true);
  p.scale = 1.0f;
  return p;
}

heddle_attention_call call_of(Forward& f, const HostBuffer& workspace, heddle_text* err) {
  heddle_attention_call call{};
  call.struct_size = sizeof call;
  call.q = f.q.data();
  call.k = f.k.data();
  call.v = f.v.data();
  call.out = f.out.data();
  call.lse = f.lse.data();
  call.workspace = workspace.data();
  call.workspace_bytes = workspace.bytes();
  call.err = err;
  return call;
}

// The plugins that were built with this tree, by every helper that the tree offers.
const char* const kPlugins[] = {HEDDLE_CPU_SDPA, HEDDLE_TEMPLATE_C, HEDDLE_TEMPLATE_CPP};

void run_in_todays_host(const char* path) {
  PluginLibrary& library = PluginLibrary::load(path);
  const PluginContext context(library, cpu_plugin_device());
  const heddle_attention_problem problem = forward_problem();
  const QueryAnswer answer = context.query(problem);
  ASSERT_TRUE(answer.supported) << answer.refusal;
  Forward f;
  const HostBuffer workspace(answer.workspace_bytes, "workspace");
  char text[128] = "";
  heddle_text err{text, sizeof text, 0};
  ASSERT_EQ(context.run(problem, call_of(f, workspace, &err)), uint32_t{HEDDLE_OK}) << text;
  expect_right(f);
}

TEST(AbiCompat, PluginOfTheFirstMinorRunsToday) {
  run_in_todays_host(HEDDLE_PLUGIN_1_0);
}

TEST(AbiCompat, PluginOfALaterMinorRunsToday) {
  run_in_todays_host(HEDDLE_PLUGIN_LATER);
  const heddle_attention_plugin& table = PluginLibrary::load(HEDDLE_PLUGIN_LATER).table();
  EXPECT_GT(table.struct_size, sizeof table);
  EXPECT_GT(table.abi_minor, HEDDLE_ATTENTION_ABI_MINOR);
}

TEST(AbiCompat, TodaysPluginsRunInTheFirstHost) {
  for (const char* path : kPlugins) {
    SCOPED_TRACE(path);
    void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(handle, nullptr) << dlerror();
    Forward f;
    const char* wrong = heddle_forward_by_host_1_0(dlsym(handle, HEDDLE_ATTENTION_ENTRY), kTokens,
                                                   kHeads, kDim, kWindow, f.q.data(), f.k.data(),
                                                   f.v.data(), f.out.data(), f.lse.data());
    ASSERT_EQ(wrong, nullptr) << wrong;
    expect_right(f);
  }
}

// A struct as a later minor would have it: more fields at the end, zero where nothing is asked.
template <class T>
struct Longer {
  T base{};
  uint64_t tail[3] = {};
};

TEST(AbiCompat, TodaysPluginsRunInALaterHost) {
  for (const char* path : kPlugins) {
    SCOPED_TRACE(path);
    const heddle_attention_plugin& table = PluginLibrary::load(path).table();
    Longer<heddle_host> host{PluginLibrary::load(path).host()};
    Longer<heddle_device> device{cpu_plugin_device()};
    Longer<heddle_attention_problem> problem{forward_problem()};
    Longer<heddle_attention_verdict> verdict;
    host.base.struct_size = sizeof host;
    host.base.abi_minor = 7;
    device.base.struct_size = sizeof device;
    problem.base.struct_size = sizeof problem;
    verdict.base.struct_size = sizeof verdict;
    for (uint64_t& word : verdict.tail) word = 0x5a5a5a5a5a5a5a5a;
    char text[128] = "";
    heddle_text err{text, sizeof text, 0};
    heddle_attention_ctx* ctx = nullptr;
    ASSERT_EQ(table.create(&host.base, &device.base, &ctx, &err), uint32_t{HEDDLE_OK}) << text;
    ASSERT_EQ(table.query(ctx, &problem.base, &verdict.base), uint32_t{HEDDLE_OK});
    ASSERT_EQ(verdict.base.supported, 1u);
    for (const uint64_t word : verdict.tail) EXPECT_EQ(word, 0x5a5a5a5a5a5a5a5a);
    Forward f;
    const HostBuffer workspace(verdict.base.workspace_bytes, "workspace");
    Longer<heddle_attention_call> call{call_of(f, workspace, &err)};
    call.base.struct_size = sizeof call;
    ASSERT_EQ(table.forward(ctx, &problem.base, &call.base), uint32_t{HEDDLE_OK}) << text;
    table.destroy(ctx);
    expect_right(f);
  }
}

TEST(AbiCompat, UnknownMeaningIsRefusedOnThePluginsBehalf) {
  const PluginContext context(PluginLibrary::load(HEDDLE_PLUGIN_1_0), cpu_plugin_device());
  heddle_attention_problem problem = forward_problem();
  problem.required_features |= UINT64_C(1) << 20;
  const QueryAnswer answer = context.query(problem);
  EXPECT_FALSE(answer.supported);
  EXPECT_THAT(answer.refusal, HasSubstr("required_features=bit 20, which it does not know"));

  const PluginContext later(PluginLibrary::load(HEDDLE_PLUGIN_LATER), cpu_plugin_device());
  EXPECT_TRUE(later.query(problem).supported);
}

TEST(AbiCompat, UnknownHintIsIgnored) {
  heddle_attention_problem problem = forward_problem();
  problem.required_features |= UINT64_C(1) << 40;
  for (const char* path :
       {HEDDLE_PLUGIN_1_0, HEDDLE_CPU_SDPA, HEDDLE_TEMPLATE_C, HEDDLE_TEMPLATE_CPP}) {
    const PluginContext context(PluginLibrary::load(path), cpu_plugin_device());
    EXPECT_TRUE(context.query(problem).supported) << path;
  }
}

TEST(AbiCompat, StructsSmallerThanTheFirstMinorAreRefused) {
  for (const char* path : kPlugins) {
    SCOPED_TRACE(path);
    const PluginLibrary& library = PluginLibrary::load(path);
    const heddle_attention_plugin& table = library.table();
    heddle_attention_ctx* ctx = nullptr;
    const heddle_device device = cpu_plugin_device();
    char text[128] = "";
    heddle_text err{text, sizeof text, 0};
    ASSERT_EQ(table.create(&library.host(), &device, &ctx, &err), uint32_t{HEDDLE_OK});
    heddle_attention_problem problem = forward_problem();
    problem.struct_size = HEDDLE_PROBLEM_SIZE_1_0 - 8;
    heddle_attention_verdict verdict{};
    verdict.struct_size = sizeof verdict;
    EXPECT_EQ(table.query(ctx, &problem, &verdict), uint32_t{HEDDLE_INVALID_ARG});
    table.destroy(ctx);
  }
}

}  // namespace
}  // namespace heddle
