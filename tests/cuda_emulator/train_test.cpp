// heddle train with device.kind cuda on the emulator, beside the same run on the CPU.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/e2e/support/command.h"

namespace heddle::test {
namespace {

constexpr int64_t kSteps = 4;

// The golden model from its parameters: a sequence of 512 tokens a step, a sample of text
// (decoding), a checkpoint.
CommandResult train(const std::string& folder, const std::string& name,
                    std::vector<std::string> more, Env env = {}) {
  std::vector<std::string> args = {
      "train", HEDDLE_SOURCE_DIR "/tests/e2e/sssl_gqa.yaml",
      "train.init_from=" HEDDLE_SOURCE_DIR "/tests/golden/sssl_gqa.safetensors",
      "train.num_iterations=" + std::to_string(kSteps), "train.total_batch_size=512",
      "train.device_batch_size=1", "train.eval_tokens=0", "train.sample_tokens=3",
      "train.peak_flops=1e9",
      "optim.warmup_steps=1", "checkpoint.at_end=true", "log.dir=" + folder, "log.name=" + name};
  args.insert(args.end(), more.begin(), more.end());
  env["HEDDLE_CUDA_MODULE"] = HEDDLE_EMULATED "/libheddle_cuda.so";
  return run_heddle(args, env, 280);
}
std::vector<std::string> cuda(const std::string& precision) {
  return {"device.kind=cuda", "device.precision=" + precision,
          "attention.plugin_path=[" HEDDLE_EMULATED "/plugins]"};
}

std::map<int64_t, double> losses(const std::string& folder, const std::string& name) {
  return read_metric(folder + "/" + name + "/metrics.jsonl", "train/loss");
}

void expect_close(const std::map<int64_t, double>& got, const std::map<int64_t, double>& want,
                  double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [step, loss] : want) {
    EXPECT_LE(std::abs(got.at(step) - loss), tolerance * loss) << "step " << step;
  }
}

TEST(CudaTrain, FollowsTheCpuAndGoesOnThere) {
  const TempFolder folder;
  const CommandResult cpu = train(folder.path(), "cpu", {"device.kind=cpu"});
  ASSERT_EQ(cpu.exit_code, 0) << cpu.err;
  const auto want = losses(folder.path(), "cpu");
  ASSERT_EQ(want.size(), static_cast<size_t>(kSteps));

  const CommandResult fp32 = train(folder.path(), "fp32", cuda("fp32"));
  ASSERT_EQ(fp32.exit_code, 0) << fp32.err;
  expect_close(losses(folder.path(), "fp32"), want, 2e-5);

  // Its checkpoint is as good as any: the CPU takes one more step from it.
  const CommandResult resumed =
      train(folder.path(), "fp32",
            {"device.kind=cpu", "train.resume=auto",
             "train.num_iterations=" + std::to_string(kSteps + 1)});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(losses(folder.path(), "fp32").size(), static_cast<size_t>(kSteps + 1));
}

// How near is trajectory_test.cpp's business; this is the way through the program.
TEST(CudaTrain, Bf16StaysNear) {
  const TempFolder folder;
  const CommandResult cpu = train(folder.path(), "cpu", {"device.kind=cpu"});
  ASSERT_EQ(cpu.exit_code, 0) << cpu.err;
  const CommandResult bf16 = train(folder.path(), "bf16", cuda("bf16"));
  ASSERT_EQ(bf16.exit_code, 0) << bf16.err;
  const auto want = losses(folder.path(), "cpu"), got = losses(folder.path(), "bf16");
  expect_close(got, want, 5e-3);
  EXPECT_NE(got.at(1), want.at(1));
}

TEST(CudaTrain, OutOfMemoryPrintsThePlan) {
  const TempFolder folder;
  std::vector<std::string> more = cuda("bf16");
  more.push_back("train.device_batch_size=4");
  more.push_back("train.total_batch_size=2048");
  for (const char* mebibytes : {"12", "5", "1"}) {  // for activations, for weights, for nothing
    const CommandResult r =
        train(folder.path(), "small", more, {{"HEDDLE_EMULATED_MEMORY_MIB", mebibytes}});
    EXPECT_EQ(r.exit_code, 4) << r.err;
    for (const char* part :
         {"heddle: [memory] ", "memory of this run on Emulated sm_80, planned", "activations",
          "optimizer state", "together", "A rank needs", "train.device_batch_size"}) {
      EXPECT_NE(r.err.find(part), std::string::npos) << part << "\n" << r.err;
    }
  }
}

TEST(CudaTrain, GraphsThatCannotBeAreRefused) {
  const TempFolder folder;
  std::vector<std::string> more = cuda("bf16");
  more.push_back("device.cuda_graph=always");
  more.push_back("attention.validate=true");
  const CommandResult validated = train(folder.path(), "validated", more);
  EXPECT_EQ(validated.exit_code, 3) << validated.err;
  EXPECT_NE(validated.err.find("attention.validate"), std::string::npos) << validated.err;
  const CommandResult cpu =
      train(folder.path(), "cpu", {"device.kind=cpu", "device.cuda_graph=always"});
  EXPECT_EQ(cpu.exit_code, 3) << cpu.err;
  EXPECT_NE(cpu.err.find("does not record"), std::string::npos) << cpu.err;
}

TEST(CudaTrain, RefusesWhatItCannotDo) {
  const TempFolder folder;
  const CommandResult none = train(folder.path(), "none", {"device.kind=cuda"});
  EXPECT_EQ(none.exit_code, 5) << none.err;  // the only plugin there serves the CPU
  const CommandResult doctor =
      run_heddle({"doctor"}, {{"HEDDLE_CUDA_MODULE", HEDDLE_EMULATED "/libheddle_cuda.so"}});
  EXPECT_EQ(doctor.exit_code, 0) << doctor.err;
  EXPECT_NE(doctor.out.find("Emulated sm_80"), std::string::npos) << doctor.out;
  const CommandResult without = run_heddle({"doctor"}, {{"HEDDLE_CUDA_MODULE", "/nowhere.so"}});
  EXPECT_NE(without.out.find("/nowhere.so is not there"), std::string::npos) << without.out;
}

}  // namespace
}  // namespace heddle::test
