// heddle plugin check and bench with --device cuda, on the emulated device: tensors live there.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "tests/e2e/support/command.h"

namespace heddle::test {
namespace {

const std::string kFlash = HEDDLE_EMULATED "/plugins/cuda_flash.so";
const std::string kMutant = HEDDLE_EMULATED "/mutants/cuda_flash_mutant.so";

CommandResult plugin(std::vector<std::string> args,
                     const std::string& module = HEDDLE_EMULATED "/libheddle_cuda.so") {
  args.insert(args.begin(), "plugin");
  return run_heddle(args, {{"HEDDLE_CUDA_MODULE", module}, {"HEDDLE_MUTANT", "window"}}, 200);
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(CheckOnCuda, PassesCudaFlash) {
  for (const char* dtype : {"bf16", "f32"}) {
    const CommandResult r = plugin({"check", kFlash, "--device", "cuda", "--dtype", dtype,
                                    "--quick", "--only", "EMPTY,KVLEN,TAIL,ALLOC,THREADS"});
    EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
    EXPECT_TRUE(has(r.out, "quick, on cuda")) << r.out;
    EXPECT_TRUE(has(r.out, "4 passed, 0 failed, 1 skipped")) << r.out;
  }
}

TEST(CheckOnCuda, NamesTheRuleThatAMutantBreaks) {
  const CommandResult r =
      plugin({"check", kMutant, "--device", "cuda", "--quick", "--only", "CNT,INVALID"});
  EXPECT_EQ(r.exit_code, 5) << r.out << r.err;
  EXPECT_TRUE(has(r.out, "CNT      keys counted exactly                 FAIL")) << r.out;
  EXPECT_TRUE(has(r.out, "the window is ignored")) << r.out;
  EXPECT_TRUE(has(r.out, "cuda_flash_mutant.so --device cuda --only CNT --case ")) << r.out;
  EXPECT_TRUE(has(r.out, "1 passed, 1 failed")) << r.out;
}

TEST(CheckOnCuda, SaysWhichDeviceIsMissing) {
  CommandResult r = plugin({"check", kFlash, "--quick"});
  EXPECT_EQ(r.exit_code, 5) << r.err;
  EXPECT_TRUE(has(r.out, "serves cuda, and --device is cpu. add --device cuda")) << r.out;
  EXPECT_TRUE(has(r.out, "0 passed, 1 failed")) << r.out;  // once, not for every rule
  r = plugin({"check", "cpu_sdpa", "--quick", "--device", "cuda"});
  EXPECT_EQ(r.exit_code, 5) << r.err;
  EXPECT_TRUE(has(r.out, "serves cpu, and --device is cuda. leave --device out")) << r.out;
  r = plugin({"check", kFlash, "--device", "cuda"}, "/nowhere.so");
  EXPECT_EQ(r.exit_code, 4) << r.out << r.err;
  EXPECT_TRUE(has(r.err, "/nowhere.so is not there")) << r.err;
}

class BenchOnCuda : public ::testing::Test {
 protected:
  BenchOnCuda() {
    put_file(folder_.path("shapes.json"),
               R"([{"seq_len": 40, "n_head": 2, "n_kv_head": 1, "head_dim": 16, "window_left": 9,
                    "ops": ["forward", "backward"]}])");
  }
  CommandResult bench(std::vector<std::string> more) {
    std::vector<std::string> args = {"bench", "--shapes", folder_.path("shapes.json"), "--reps",
                                     "1",     "--json",   folder_.path("b.json")};
    args.insert(args.end(), more.begin(), more.end());
    return plugin(args);
  }
  boost::json::object json() const {
    return boost::json::parse(get_file(folder_.path("b.json"))).as_object();
  }
  TempFolder folder_;
};

TEST_F(BenchOnCuda, TimesCudaFlash) {
  const CommandResult r = bench({"--device", "cuda", "--plugin-path", kFlash, "--plugins",
                                 "cuda_flash", "--peak-tflops", "312"});
  ASSERT_EQ(r.exit_code, 0) << r.out << r.err;
  EXPECT_TRUE(has(r.out, "tensors bf16; stated peak 312 TFLOP/s")) << r.out;
  EXPECT_TRUE(has(r.out, "TFLOP/s")) << r.out;
  EXPECT_TRUE(has(r.out, "mma_bf16_d64")) << r.out;
  const boost::json::object result = json();
  EXPECT_EQ(result.at("device").as_string(), "cuda");
  EXPECT_EQ(result.at("dtype").as_string(), "bf16");
  const boost::json::array& rows = result.at("rows").as_array();
  ASSERT_EQ(rows.size(), 2u);
  for (const boost::json::value& row : rows) {
    // The emulator's events count launches, a microsecond each.
    const double us = row.at("median_us").to_number<double>();
    EXPECT_GE(us, 1.0);
    EXPECT_LE(us, 10.0);
    const double gflops = row.at("gflops").to_number<double>();
    EXPECT_NEAR(row.at("share_of_peak").to_number<double>(), gflops / 312e3, 1e-9 + 1e-6 * gflops);
  }
}

TEST_F(BenchOnCuda, LeavesTheOrderToThePluginWhenAsked) {
  const std::vector<std::string> args = {"--device", "cuda",     "--plugin-path", kFlash,
                                         "--ops",    "backward", "--plugins",     "cuda_flash"};
  CommandResult r = bench(args);
  EXPECT_TRUE(has(r.out, "mma_bf16_d64_ordered")) << r.out << r.err;
  std::vector<std::string> any_order = args;
  any_order.push_back("--any-order");
  r = bench(any_order);
  EXPECT_TRUE(has(r.out, "mma_bf16_d64_atomic (not deterministic)")) << r.out << r.err;
}

TEST_F(BenchOnCuda, FindsWrongNumbers) {
  const CommandResult r =
      bench({"--device", "cuda", "--plugin-path", kMutant, "--plugins", "cuda_flash_mutant"});
  EXPECT_EQ(r.exit_code, 5) << r.out << r.err;
  EXPECT_TRUE(has(r.out, "failed: wrong numbers: lse (b 0")) << r.out;
  EXPECT_TRUE(has(r.out, "peak not known (--peak-tflops states it)")) << r.out;
}

TEST_F(BenchOnCuda, IsNotTheDefault) {
  CommandResult r = bench({"--plugin-path", kFlash, "--plugins", "cuda_flash"});
  EXPECT_EQ(r.exit_code, 3) << r.err;  // too few repetitions for a CPU
  r = plugin({"bench", "--shapes", folder_.path("shapes.json"), "--plugin-path", kFlash,
              "--plugins", "cuda_flash"});
  EXPECT_EQ(r.exit_code, 5) << r.err;
  EXPECT_TRUE(has(r.out, "serves cuda; --device cuda measures there")) << r.out;
}

}  // namespace
}  // namespace heddle::test
