// The arithmetic, the shapes files, the table, the JSON and the picture of `heddle plugin bench`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/cli/bench_report.h"
#include "framework/config/load.h"
#include "framework/core/error.h"
#include "framework/core/file.h"
#include "tests/support/temp_folder.h"

namespace heddle {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

BenchCase case_of(uint32_t op, int64_t seq_len, int64_t window) {
  BenchCase c;
  c.op = op;
  c.kind = {4, 2, 16, window};
  c.batch = op == HEDDLE_OP_DECODE ? 1 : 3;
  c.seq_len = seq_len;
  c.layout = contiguous_layout(c.kind);
  return c;
}

TEST(BenchCases, VisiblePairsAreCountedOneByOne) {
  for (const int64_t n : {1, 2, 7, 40}) {
    for (const int64_t w : {-1, 0, 1, 6, 7, 39, 40, 100}) {
      int64_t pairs = 0;
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j <= i; ++j) pairs += w < 0 || i - j <= w;
      }
      EXPECT_EQ(visible_pairs(case_of(HEDDLE_OP_FORWARD, n, w)), pairs) << n << ' ' << w;
    }
  }
}

TEST(BenchCases, WorkIsCountedOnVisiblePairs) {
  const BenchCase forward = case_of(HEDDLE_OP_FORWARD, 10, 2);  // 1 + 2 + 8 * 3 pairs
  EXPECT_DOUBLE_EQ(flops(forward), 4.0 * 16 * 27 * 3 * 4);
  EXPECT_DOUBLE_EQ(flops(case_of(HEDDLE_OP_BACKWARD, 10, 2)), 2.5 * flops(forward));
  // Keys and values of three tokens on two kv heads.
  EXPECT_DOUBLE_EQ(cache_bytes(case_of(HEDDLE_OP_DECODE, 10, 2)), 2.0 * 4 * 3 * 2 * 16);
}

TEST(BenchCases, GoThroughTextUnchanged) {
  const BenchCase c = case_of(HEDDLE_OP_BACKWARD, 10, 2);
  const BenchCase back = case_from_text(case_to_text(c));
  EXPECT_EQ(back, c);
  EXPECT_EQ(back.layout.dv_row, c.layout.dv_row);
  EXPECT_EQ(back.layout.dout_row, c.layout.dout_row);
  BenchCase narrow = c;
  narrow.dtype = HEDDLE_DTYPE_BF16;
  EXPECT_EQ(case_from_text(case_to_text(narrow)), narrow);
  EXPECT_DOUBLE_EQ(cache_bytes(narrow), 0.5 * cache_bytes(c));
}

TEST(BenchCases, OfARunAreItsLayers) {
  const Config config = parse_config(
      "model: {n_layer: 3, n_head: 4, n_kv_head: 2, n_embd: 64, sequence_len: 256, "
      "window_pattern: SL}\ntrain: {device_batch_size: 2, total_batch_size: 1024}\n",
      "run.yaml");
  const std::vector<BenchCase> cases = cases_of_run(config);
  ASSERT_EQ(cases.size(), 6u);  // two kinds, three operations
  EXPECT_EQ(cases[0].kind, (AttentionLayerKind{4, 2, 16, 128}));
  EXPECT_EQ(cases[0].batch, 2);
  EXPECT_EQ(cases[2].op, uint32_t{HEDDLE_OP_DECODE});
  EXPECT_EQ(cases[2].batch, 1);
  EXPECT_EQ(cases[0].layout.q_row, 64 + 2 * 32);  // columns of one projected row
}

class ShapesFile : public ::testing::Test {
 protected:
  std::vector<BenchCase> read(const std::string& text) {
    const std::string path = folder_ / "shapes.json";
    write_file_atomically(path, text);
    return cases_of_file(path);
  }
  std::string error(const std::string& text) {
    try {
      read(text);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kConfig) << e.what();
      return e.what();
    }
    return "no error";
  }
  heddle::test::MemoryFolder folder_;
};

TEST_F(ShapesFile, NamesShapesAndOperations) {
  const auto cases = read(R"([{"seq_len": 64, "n_head": 6, "head_dim": 32},
    {"seq_len": 8, "n_head": 6, "n_kv_head": 3, "head_dim": 4, "batch": 5, "window_left": 2,
     "ops": ["backward"]}])");
  ASSERT_EQ(cases.size(), 4u);
  EXPECT_EQ(cases[0].kind, (AttentionLayerKind{6, 6, 32, -1}));
  EXPECT_EQ(cases[3].op, uint32_t{HEDDLE_OP_BACKWARD});
  EXPECT_EQ(cases[3].batch, 5);
  EXPECT_EQ(cases[3].kind, (AttentionLayerKind{6, 3, 4, 2}));
}

TEST_F(ShapesFile, MistakesAreNamed) {
  EXPECT_THAT(error(R"([{"seq_len": 8, "n_head": 2}])"), HasSubstr("shape 1 lacks 'head_dim'"));
  EXPECT_THAT(error(R"([{"seq_len": 8, "n_heads": 2}])"), HasSubstr("unknown key 'n_heads'"));
  EXPECT_THAT(error(R"([{"seq_len": 8.5, "n_head": 2, "head_dim": 4}])"),
              HasSubstr("seq_len: 8.5E0, expected a whole number of at least 1"));
  EXPECT_THAT(error(R"([{"seq_len": 8, "n_head": 3, "n_kv_head": 2, "head_dim": 4}])"),
              HasSubstr("n_kv_head 2, which does not divide n_head 3"));
  EXPECT_THAT(error(R"([{"seq_len": 8, "n_head": 2, "head_dim": 4, "ops": ["sideways"]}])"),
              HasSubstr("\"sideways\", expected forward, backward or decode"));
  EXPECT_THAT(error(R"({"seq_len": 8})"), HasSubstr("holds no list of shapes"));
}

BenchRow row_of(uint32_t op, const std::string& plugin, std::vector<double> us) {
  BenchRow row;
  row.shape = case_of(op, 10, 2);
  row.plugin = plugin;
  row.us = std::move(us);
  row.last.version = "1.0";
  row.last.kernel = "k";
  row.last.workspace_bytes = 2048;
  row.last.deterministic = true;
  return row;
}

BenchResult result_of_two() {
  BenchResult result;
  result.machine = "a <machine>";
  result.threads = 2;
  result.peak_flops = 1e9 * flops(case_of(HEDDLE_OP_FORWARD, 10, 2)) / 1e3;  // 1 us would be 100 %
  result.bytes_per_second = 1e9;
  result.rows = {row_of(HEDDLE_OP_FORWARD, "fast", {2, 4, 3, 2, 2}),
                 row_of(HEDDLE_OP_FORWARD, "slow", {8}), row_of(HEDDLE_OP_DECODE, "fast", {1}),
                 row_of(HEDDLE_OP_DECODE, "slow", {})};
  result.rows[3].last.failure = "crashed with signal 11";
  return result;
}

TEST(BenchReport, MedianSpreadAndShare) {
  EXPECT_DOUBLE_EQ(median({3, 1, 2}), 2.0);
  EXPECT_DOUBLE_EQ(median({4, 1, 2, 3}), 2.5);
  const BenchResult r = result_of_two();
  EXPECT_DOUBLE_EQ(r.rows[0].median_us(), 2.0);
  EXPECT_DOUBLE_EQ(r.rows[0].spread(), 1.0);
  EXPECT_NEAR(r.share(r.rows[0]), 0.5, 1e-12);
  EXPECT_NEAR(r.share(r.rows[1]), 0.125, 1e-12);
  EXPECT_NEAR(r.share(r.rows[2]), cache_bytes(r.rows[2].shape) / 1e3, 1e-12);
}

TEST(BenchReport, TableShowsFailuresAsRows) {
  const std::string table = bench_table(result_of_two());
  EXPECT_THAT(table, HasSubstr("B 3 T 10 H 4 K 2 D 16 window_left 2"));
  EXPECT_THAT(table, HasSubstr("decode    slow 1.0                failed: crashed with signal 11"));
  EXPECT_THAT(table, HasSubstr("50.0%"));
  EXPECT_THAT(table, HasSubstr("2.0 KiB"));
  // The decode stands under the training shape.
  EXPECT_EQ(table.find("median us"), table.rfind("median us"));
}

TEST(BenchReport, JsonHasEveryNumber) {
  const json::object o = bench_json(result_of_two());
  const json::array& rows = o.at("rows").as_array();
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].at("us").as_array().size(), 5u);
  EXPECT_DOUBLE_EQ(rows[0].at("median_us").as_double(), 2.0);
  EXPECT_TRUE(rows[2].as_object().contains("gbytes_per_second"));
  EXPECT_EQ(rows[3].at("failed").as_string(), "crashed with signal 11");
  EXPECT_FALSE(rows[3].as_object().contains("median_us"));
}

TEST(BenchReport, OfAGpuInTeraAndOnlyAgainstWhatIsKnown) {
  BenchResult r = result_of_two();
  r.device = "cuda";
  r.machine = "cuda:0 (a GPU)";
  r.dtype = HEDDLE_DTYPE_BF16;
  EXPECT_THAT(bench_table(r), HasSubstr("TFLOP/s   50.0%"));
  EXPECT_THAT(bench_table(r), HasSubstr("cuda:0 (a GPU); tensors bf16; stated peak"));
  r.peak_flops = r.bytes_per_second = 0.0;
  EXPECT_THAT(bench_table(r), HasSubstr("peak not known (--peak-tflops states it)"));
  EXPECT_THAT(bench_table(r), Not(HasSubstr("50.0%")));
  EXPECT_FALSE(bench_json(r).at("rows").at(0).as_object().contains("share_of_peak"));
}

TEST(BenchReport, PeaksAreStatedForWhatIsListed) {
  EXPECT_DOUBLE_EQ(stated_limits("cuda:0 (NVIDIA H200, sm_90, 143771 MiB, bf16)").flops, 989e12);
  EXPECT_DOUBLE_EQ(stated_limits("NVIDIA A100-SXM4-80GB").bytes_per_second, 2.04e12);
  EXPECT_DOUBLE_EQ(stated_limits("NVIDIA H100 PCIe").flops, 0.0);
  EXPECT_DOUBLE_EQ(stated_limits("Emulated sm_80").flops, 0.0);
}

TEST(BenchReport, PictureIsWellFormed) {
  const std::string svg = bench_svg(result_of_two());
  EXPECT_THAT(svg, HasSubstr("a &lt;machine&gt;"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  size_t open = 0, close = 0;
  for (size_t at = 0; (at = svg.find("<text", at)) != std::string::npos; ++at) ++open;
  for (size_t at = 0; (at = svg.find("</text>", at)) != std::string::npos; ++at) ++close;
  EXPECT_EQ(open, close);
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

}  // namespace
}  // namespace heddle
