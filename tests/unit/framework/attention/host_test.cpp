// Choosing backends, saying why, and running what was bound.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "framework/attention/attention.h"
#include "framework/core/buffer.h"
#include "framework/core/parallel_for.h"
#include "framework/core/rng.h"
#include "kernels/reference/attention.h"
#include "tests/unit/framework/attention/allocations.h"
#include "tests/unit/framework/attention/fixtures.h"

namespace heddle {
namespace {

using test::config_with;
using test::copy_to;
using test::Environment;
using test::error_of;
using test::fixture;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr AttentionLayerKind kShort{4, 2, 16, 8};
constexpr AttentionLayerKind kLong{4, 2, 16, -1};

AttentionLayout contiguous_layout(const AttentionLayerKind& kind) {
  AttentionLayout l;
  l.q_row = l.out_row = l.dq_row = l.dout_row = kind.n_head * kind.head_dim;
  l.k_row = l.v_row = l.dk_row = l.dv_row = kind.n_kv_head * kind.head_dim;
  return l;
}

class HostTest : public ::testing::Test {
 protected:
  std::unique_ptr<AttentionHost> make(const std::string& backend,
                                      const std::vector<std::string>& names) {
    std::vector<std::string> paths;
    for (const std::string& n : names) paths.push_back(n.starts_with("/") ? n : fixture(n));
    return AttentionHost::create(config_with(backend, paths), device_);
  }
  std::unique_ptr<AttentionHost> selected(const std::string& backend,
                                          const std::vector<std::string>& names,
                                          const AttentionLayerKind& kind = kShort) {
    auto host = make(backend, names);
    host->select({kind}, 2, 24, contiguous_layout(kind));
    return host;
  }

  Environment program_{"HEDDLE_PROBE_EXE", HEDDLE_PROBE_PROGRAM};
  test::PlainDevice device_;
};

TEST_F(HostTest, AutoTakesTheLowestEstimateAndSaysWhyNotTheOthers) {
  const auto host = selected("auto", {"naive_untimed", "naive", "naive_fast"});
  EXPECT_EQ(host->backend(kShort), "naive_fast");
  const std::string text = host->explain();
  EXPECT_THAT(text, HasSubstr("attention H 4 K 2 D 16 window_left 8 (B 2, T 24): naive_fast 0.1"));
  EXPECT_THAT(text, HasSubstr("forward  naive_fast 0.1, kernel naive_fast_loops"));
  EXPECT_THAT(text, HasSubstr("not naive 0.1 (" + fixture("naive") + "): slower by its estimate"));
  EXPECT_THAT(text, HasSubstr("not naive_untimed 0.1 (" + fixture("naive_untimed") +
                              "): gives no estimated time"));
}

TEST_F(HostTest, AutoWeighsWhatAPluginCannotAvoid) {
  // Faster by 1.5 is not enough for one that allocates and has threads of its own.
  const auto host = selected("auto", {"allocates", "naive_fast"});
  EXPECT_EQ(host->backend(kShort), "naive_fast");
  EXPECT_THAT(host->explain(),
              HasSubstr("counted 2 times because it declares ALLOCATES, OWN_THREADS) against"));
  EXPECT_EQ(selected("auto", {"allocates_fast", "naive_fast"})->backend(kShort), "allocates_fast");
}

TEST_F(HostTest, AutoPassesOverWhatCannotTrain) {
  const test::TempFolder folder;
  copy_to(fixture("crash_entry"), folder / "crash_entry.so");
  const auto host =
      make("auto", {folder.path(), "no_backward", "only_d64", "no_windows", "gpu", "naive_fast"});
  host->select({kShort, kLong}, 2, 24, contiguous_layout(kShort));
  EXPECT_EQ(host->backend(kShort), "naive_fast");
  const std::string text = host->explain();
  EXPECT_THAT(text, HasSubstr("crash_entry.so): crashed with signal 4"));
  EXPECT_THAT(text, HasSubstr("no_backward.so): backward: op=backward, which it does not offer"));
  EXPECT_THAT(text, HasSubstr("only_d64.so): forward: head_dim=16, needs ==64; change n_embd"));
  EXPECT_THAT(text, HasSubstr("no_windows.so): forward: required_features=WINDOW_LEFT, which it "
                              "does not know"));
  EXPECT_THAT(text, HasSubstr("gpu.so): serves cuda, but the run is on cpu"));
}

TEST_F(HostTest, TheSameBitsEveryTimeComeBeforeSpeed) {
  const auto host = selected("auto", {"undetermined", "naive_fast"});
  EXPECT_EQ(host->backend(kShort), "naive_fast");
  EXPECT_THAT(host->explain(), HasSubstr("does not promise the same bits every time"));
  const auto named = selected("undetermined", {"undetermined"});
  EXPECT_EQ(named->backend(kShort), "undetermined");
  EXPECT_THAT(named->explain(),
              HasSubstr("undetermined 0.1, which does not promise the same bits every time"));
}

TEST_F(HostTest, ANamedBackendThatIsNotThereIsAnError) {
  EXPECT_THAT(error_of([&] { make("flash", {"naive"}); }),
              ::testing::AllOf(HasSubstr("attention.backend names 'flash', but the plugins found "
                                         "are: naive"),
                               HasSubstr("attention.plugin_path")));
}

TEST_F(HostTest, ANamedBackendThatWasRefusedIsAnErrorWithTheReason) {
  const test::TempFolder folder;
  copy_to(fixture("exit_entry"), folder / "libheddle_flash.so");
  EXPECT_THAT(error_of([&] { make("flash", {folder.path()}); }),
              HasSubstr("attention backend 'flash': " + folder.path("libheddle_flash.so") +
                        " ended its process with exit status 3"));
  EXPECT_THAT(error_of([&] { make("gpu", {"gpu"}); }),
              HasSubstr("attention backend 'gpu' (" + fixture("gpu") +
                        ") serves cuda, but the run is on cpu"));
}

TEST_F(HostTest, ANamedBackendThatCannotServeIsAnErrorWithTheReason) {
  EXPECT_THAT(error_of([&] {
                selected("only_d64", {"only_d64", "naive"});
              }),
              ::testing::AllOf(
                  HasSubstr("attention backend 'only_d64' cannot train layers with H 4 K 2 D 16 "
                            "window_left 8 (B 2, T 24): forward: head_dim=16, needs ==64"),
                  HasSubstr("set attention.backend to auto")));
}

TEST_F(HostTest, AFileNamedByTheUserThatIsNoPluginIsAnError) {
  const test::TempFolder folder;
  folder.write("notes.so", "text");
  EXPECT_THAT(error_of([&] { make("auto", {folder.path("notes.so")}); }),
              HasSubstr("notes.so, named by attention.plugin_path, is not a shared library"));
  EXPECT_THAT(error_of([&] { make("auto", {"next_major"}); }), HasSubstr("ABI major 2"));
  EXPECT_THAT(error_of([&] { make("auto", {"wrong_window"}); }), HasSubstr("wrong numbers"));
}

TEST_F(HostTest, AutoWithNothingThatServesListsEveryReason) {
  const AttentionLayerKind odd{4, 2, 300, 8};  // beyond cpu_sdpa too
  const auto host = make("auto", {"only_d64", "no_backward"});
  const std::string text = error_of([&] { host->select({odd}, 2, 24, contiguous_layout(odd)); });
  EXPECT_THAT(text, HasSubstr("no attention backend can train layers with H 4 K 2 D 300"));
  EXPECT_THAT(text, HasSubstr("only_d64.so): forward: head_dim=300, needs ==64"));
  EXPECT_THAT(text, HasSubstr("no_backward.so): backward"));
}

TEST_F(HostTest, DecodeMayRunElsewhereAndThatIsSaid) {
  const auto host = selected("no_decode", {"no_decode", "naive"});
  EXPECT_EQ(host->backend(kShort), "no_decode");
  EXPECT_THAT(host->explain(), HasSubstr("decode   naive 0.1"));
  EXPECT_THAT(host->explain(), HasSubstr("decode not by no_decode 0.1: op=decode"));
  BoundAttention& bound = host->bind_decode(kShort, 2, 1, 24, contiguous_layout(kShort));
  EXPECT_EQ(bound.backend(), "naive");
  EXPECT_EQ(&bound, &host->bind_decode(kShort, 2, 1, 24, contiguous_layout(kShort)));
}

TEST_F(HostTest, KindsThatWereNotSelectedAreRefused) {
  const auto host = selected("naive", {"naive"});
  EXPECT_THAT(error_of([&] { host->backend(kLong); }),
              HasSubstr("no backend was chosen for attention with H 4 K 2 D 16 no window"));
  EXPECT_THAT(error_of([&] { host->bind_forward(kLong, 2, 24, contiguous_layout(kLong), true); }),
              HasSubstr("no backend was chosen"));
}

TEST_F(HostTest, BindingsAreKeptPerProblem) {
  const auto host = selected("naive", {"naive"});
  const AttentionLayout layout = contiguous_layout(kShort);
  BoundAttention& a = host->bind_forward(kShort, 2, 24, layout, true);
  EXPECT_EQ(&a, &host->bind_forward(kShort, 2, 24, layout, true));
  EXPECT_NE(&a, &host->bind_forward(kShort, 1, 24, layout, true));
  EXPECT_NE(&a, &host->bind_forward(kShort, 2, 24, layout, false));
  EXPECT_EQ(host->bind_forward(kShort, 1, 24, layout, true).problem().batch, 1);
  EXPECT_EQ(&a, &host->bind_forward(kShort, 2, 24, layout, true));
  host->select({kShort, kLong}, 8, 24, layout);  // a second model
  EXPECT_EQ(&a, &host->bind_forward(kShort, 2, 24, layout, true));
}

TEST_F(HostTest, AnotherBatchIsAskedForAndMayBeRefused) {
  const auto host = selected("only_d64", {"only_d64"}, {4, 2, 64, 8});
  const AttentionLayerKind kind{4, 2, 64, 8};
  EXPECT_EQ(host->bind_backward(kind, 5, 48, contiguous_layout(kind)).problem().q_len, 48);
}

TEST_F(HostTest, PluginsWithoutNeedOfLseAreNotAskedForIt) {
  const auto host = selected("no_lse", {"no_lse"});
  const auto& p = host->bind_forward(kShort, 2, 24, contiguous_layout(kShort), true).problem();
  EXPECT_EQ(p.flags & HEDDLE_FLAG_LSE_OUT, 0u);
}

TEST_F(HostTest, FingerprintNamesPluginFileAndKernels) {
  const std::string one = selected("naive", {"naive"})->fingerprint();
  EXPECT_EQ(one, selected("naive", {"naive"})->fingerprint());
  EXPECT_THAT(one, HasSubstr("H 4 K 2 D 16 window_left 8: forward naive 0.1 crc32c "));
  EXPECT_THAT(one, HasSubstr("naive_loops"));
  EXPECT_NE(one, selected("naive_fast", {"naive_fast"})->fingerprint());
}

// Tensors of one training problem on the host.
struct Tensors {
  explicit Tensors(const AttentionLayerKind& k, int64_t batch, int64_t len)
      : q_size(static_cast<size_t>(batch * len * k.n_head * k.head_dim)),
        k_size(static_cast<size_t>(batch * len * k.n_kv_head * k.head_dim)),
        memory((3 * q_size + 4 * k_size + q_size) * sizeof(float) + 4096, "tensors") {
    Rng rng(3, "host test");
    float* p = memory.f32();
    for (float** t : {&q, &out, &dout, &dq}) {
      *t = p;
      p += q_size;
    }
    for (float** t : {&key, &value, &dk, &dv}) {
      *t = p;
      p += k_size;
    }
    lse.resize(static_cast<size_t>(batch * k.n_head * len));
    for (size_t i = 0; i < q_size; ++i) q[i] = rng.normal(), dout[i] = rng.normal();
    for (size_t i = 0; i < k_size; ++i) key[i] = rng.normal(), value[i] = rng.normal();
  }
  heddle_attention_call call(HostBuffer& workspace) {
    heddle_attention_call c{};
    c.q = q;
    c.k = key;
    c.v = value;
    c.out = out;
    c.lse = lse.data();
    c.dout = dout;
    c.dq = dq;
    c.dk = dk;
    c.dv = dv;
    c.workspace = workspace.data();
    c.workspace_bytes = workspace.bytes();
    return c;
  }

  size_t q_size, k_size;
  HostBuffer memory;
  float *q, *out, *dout, *dq, *key, *value, *dk, *dv;
  std::vector<float> lse;
};

double relative_error(const float* got, const std::vector<float>& want) {
  double error = 0.0, norm = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(error / norm);
}

class RunTest : public HostTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(RunTest, ForwardAndBackwardAgreeWithTheDefinition) {
  namespace ref = kernels::reference;
  const std::string path = GetParam() == std::string("cpu_sdpa") ? HEDDLE_CPU_SDPA : GetParam();
  const auto host = selected(GetParam(), {path});
  const AttentionLayout layout = contiguous_layout(kShort);
  BoundAttention& forward = host->bind_forward(kShort, 2, 24, layout, true);
  BoundAttention& backward = host->bind_backward(kShort, 2, 24, layout);
  HostBuffer workspace(std::max(forward.workspace_bytes(), backward.workspace_bytes()) + 64, "ws");
  Tensors t(kShort, 2, 24);
  forward.run(t.call(workspace));
  backward.run(t.call(workspace));

  ref::AttentionShape shape;
  shape.batch = 2;
  shape.q_len = shape.k_len = 24;
  shape.n_head = 4;
  shape.n_kv_head = 2;
  shape.head_dim = 16;
  shape.scale = 0.25;
  shape.window_left = 8;
  const ref::Strides qs = ref::contiguous(24, 4, 16), ks = ref::contiguous(24, 2, 16);
  std::vector<float> out(t.q_size), dq(t.q_size), dk(t.k_size), dv(t.k_size);
  ref::attention_forward<float>(shape, {t.q, qs}, {t.key, ks}, {t.value, ks}, {out.data(), qs},
                                static_cast<float*>(nullptr));
  ref::attention_backward<float>(shape, {t.q, qs}, {t.key, ks}, {t.value, ks}, {t.dout, qs},
                                 {dq.data(), qs}, {dk.data(), ks}, {dv.data(), ks});
  EXPECT_LT(relative_error(t.out, out), 3e-6);
  EXPECT_LT(relative_error(t.dq, dq), 1e-5);
  EXPECT_LT(relative_error(t.dk, dk), 1e-5);
  EXPECT_LT(relative_error(t.dv, dv), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Backends, RunTest, ::testing::Values("naive", "scratch", "cpu_sdpa"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST_F(HostTest, AskingAgainAndRunningAllocateNothing) {
  const auto host = selected("naive", {"naive"});
  const AttentionLayout layout = contiguous_layout(kShort);
  HostBuffer workspace(64, "ws");
  Tensors t(kShort, 2, 24);
  set_num_threads(1);  // starting threads is not what is counted
  host->bind_forward(kShort, 2, 24, layout, true);
  const int64_t before = test::allocations();
  for (int i = 0; i < 3; ++i) {
    host->bind_forward(kShort, 2, 24, layout, true).run(t.call(workspace));
  }
  EXPECT_EQ(test::allocations(), before);
  set_num_threads(0);
}

TEST_F(HostTest, WorkspaceSlackCoversThePluginsAlignment) {
  const auto host = selected("scratch", {"scratch"});
  EXPECT_EQ(host->bind_forward(kShort, 2, 24, contiguous_layout(kShort), true).workspace_bytes(),
            1000u + 1024u - 64u);
}

TEST_F(HostTest, ABrokenPromiseIsReportedAsSuch) {
  const auto host = selected("short_promise", {"short_promise"});
  BoundAttention& bound = host->bind_forward(kShort, 1, 300, contiguous_layout(kShort), true);
  HostBuffer workspace(64, "ws");
  Tensors t(kShort, 1, 300);
  EXPECT_THAT(error_of([&] { bound.run(t.call(workspace)); }),
              HasSubstr("attention backend 'short_promise' 0.1 broke its promise: query said yes "
                        "(kernel short_promise_loops), but forward B 1 T 300 S 300 H 4 K 2 D 16 "
                        "window_left 8 returned UNSUPPORTED: too long after all"));
}

}  // namespace
}  // namespace heddle
