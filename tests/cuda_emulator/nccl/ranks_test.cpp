// Several ranks of heddle train on emulated CUDA devices, through the double of NCCL: what they
// compute, which devices they take, and how a job ends that cannot go on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/e2e/support/command.h"

namespace heddle::test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using Args = std::vector<std::string>;

constexpr const char* kModule = HEDDLE_EMULATED "/libheddle_cuda.so";
constexpr const char* kNccl = HEDDLE_EMULATED "/libheddle_nccl_double.so";

Env emulated(Env more = {}) {
  Env env = {{"HEDDLE_CUDA_MODULE", kModule},
             {"HEDDLE_NCCL_LIBRARY", kNccl},
             {"HEDDLE_EMULATED_DEVICES", "4"}};
  for (const auto& [name, value] : more) env[name] = value;
  return env;
}

// A model of two layers, three sequences of 32 tokens a step, one a micro-step: shares of two ranks
// differ.
Args train_args(const TempFolder& folder, const std::string& name, const Args& more = {}) {
  Args args = {"train",
               HEDDLE_SOURCE_DIR "/tests/e2e/sssl_gqa.yaml",
               "model.n_layer=2",
               "model.sequence_len=32",
               "train.num_iterations=3",
               "train.total_batch_size=96",
               "train.device_batch_size=1",
               "train.eval_tokens=0",
               "train.peak_flops=1e9",
               "optim.warmup_steps=1",
               "attention.plugin_path=[" HEDDLE_EMULATED "/plugins]",
               "dist.timeout_s=20",
               "log.dir=" + folder.path(),
               "log.name=" + name};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}
Args cuda(Args more = {}) {
  more.insert(more.begin(), {"device.kind=cuda", "device.precision=fp32"});
  return more;
}

CommandResult launch(int ranks, const Args& args, const Env& env = emulated()) {
  Args argv = {heddle_path(), "launch", "-n", std::to_string(ranks), "--grace", "1", "--"};
  argv.push_back(heddle_path());
  argv.insert(argv.end(), args.begin(), args.end());
  CommandResult r = run_command(argv, env, 100);
  r.out += r.err;
  return r;
}

std::map<int64_t, double> metric(const TempFolder& folder, const std::string& name,
                                 const std::string& key = "train/loss") {
  return read_metric(folder.path(name + "/metrics.jsonl"), key);
}

void expect_close(const std::map<int64_t, double>& got, const std::map<int64_t, double>& want,
                  double tolerance) {
  ASSERT_EQ(want.size(), 3u);
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [step, loss] : want) {
    EXPECT_LE(std::abs(got.at(step) - loss), tolerance * loss) << "step " << step;
  }
}

TEST(CudaRanks, TwoFollowOne) {
  const TempFolder folder;
  const CommandResult one = run_heddle(train_args(folder, "one", cuda()), emulated());
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const auto want = metric(folder, "one");
  for (const std::string level : {"optimizer", "gradients", "none"}) {
    const CommandResult two = launch(2, train_args(folder, level, cuda({"dist.shard=" + level})));
    ASSERT_EQ(two.exit_code, 0) << two.out;
    EXPECT_THAT(two.out, AllOf(HasSubstr("nccl (NCCL 2.28.9)"), HasSubstr("rank 0 of 2")));
    expect_close(metric(folder, level), want, 2e-6);
  }
  // The bytes are those of the other backends, too.
  const CommandResult cpu = launch(2, train_args(folder, "cpu", {"device.kind=cpu"}));
  ASSERT_EQ(cpu.exit_code, 0) << cpu.out;
  EXPECT_THAT(cpu.out, HasSubstr("gloo"));
  EXPECT_EQ(metric(folder, "optimizer", "train/comm_bytes"),
            metric(folder, "cpu", "train/comm_bytes"));
}

TEST(CudaRanks, Bf16FollowsOneRank) {
  const TempFolder folder;
  const CommandResult one = run_heddle(train_args(folder, "one", {"device.kind=cuda"}), emulated());
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const CommandResult three = launch(3, train_args(folder, "three", {"dist.backend=nccl"}));
  ASSERT_EQ(three.exit_code, 0) << three.out;
  expect_close(metric(folder, "three"), metric(folder, "one"), 5e-3);
}

// Rounded once, from sums that are exact in any order.
TEST(CudaRanks, ReproducibleIsTheSameToTheBit) {
  const TempFolder folder;
  const Args exact = cuda({"train.reproducible=true"});
  const CommandResult one = run_heddle(train_args(folder, "one", exact), emulated());
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const CommandResult two = launch(2, train_args(folder, "two", exact));
  ASSERT_EQ(two.exit_code, 0) << two.out;
  EXPECT_EQ(metric(folder, "one"), metric(folder, "two"));
  EXPECT_EQ(metric(folder, "one", "train/grad_norm"), metric(folder, "two", "train/grad_norm"));
}

TEST(CudaRanks, DryRunCountsItsMemory) {
  const TempFolder folder;
  Args args = train_args(folder, "dry", cuda());
  args.push_back("--dry-run");
  const CommandResult r = launch(2, args);
  ASSERT_EQ(r.exit_code, 0) << r.out;
  EXPECT_THAT(r.out, ContainsRegex("64\\.0 MiB communication"));
}

#ifdef HEDDLE_WITH_MPI
TEST(CudaRanks, ServeUnderMpirun) {
  const TempFolder folder;
  const CommandResult r =
      run_mpi(2, train_args(folder, "mpi", cuda({"train.num_iterations=1"})), emulated());
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.out + r.err, AllOf(HasSubstr("nccl (NCCL"), HasSubstr("mpi (Open MPI")));
}
#endif

// ---- which device a rank takes ------------------------------------------------------------------

TEST(CudaRanks, ALauncherMayShowEachRankItsOwnDevice) {
  const TempFolder folder;
  std::string line = "CUDA_VISIBLE_DEVICES=$((3 - LOCAL_RANK)) exec " + heddle_path();
  for (const std::string& a : train_args(folder, "own", cuda({"train.num_iterations=1"}))) {
    line += " '" + a + "'";
  }
  put_file(folder.path("rank.sh"), line + "\n");
  const CommandResult r =
      run_command({heddle_path(), "launch", "-n", "2", "--", "/bin/sh", folder.path("rank.sh")},
                  emulated(), 100);
  ASSERT_EQ(r.exit_code, 0) << r.out << r.err;
  // The last byte of the emulated UUID is the number of the device.
  EXPECT_THAT(r.out + r.err, HasSubstr("000003, for the host"));
}

TEST(CudaRanks, MoreRanksThanDevicesIsAnErrorWithBothNumbers) {
  const TempFolder folder;
  const CommandResult r =
      launch(3, train_args(folder, "many", cuda()), emulated({{"HEDDLE_EMULATED_DEVICES", "2"}}));
  EXPECT_EQ(r.exit_code, 4);
  EXPECT_THAT(r.out, AllOf(HasSubstr("3 ranks on this host see 2 CUDA devices"),
                           HasSubstr("CUDA_VISIBLE_DEVICES")));
}

TEST(CudaRanks, TwoRanksOnOneDeviceAreRefusedAndNamed) {
  const TempFolder folder;
  const CommandResult r =
      launch(2, train_args(folder, "same", cuda()), emulated({{"HEDDLE_EMULATED_DEVICES", "1"}}));
  EXPECT_EQ(r.exit_code, 4);
  EXPECT_THAT(r.out, AllOf(HasSubstr("ranks 0 and 1 have the same device GPU-e5"),
                           HasSubstr("2 ranks use 1 devices")));
}

// ---- NCCL that is missing, and backends that do not fit
// ------------------------------------------

TEST(CudaRanks, WithoutNcclThereIsOneClearErrorOrTheCpu) {
  const TempFolder folder;
  const Env missing = emulated({{"HEDDLE_NCCL_LIBRARY", "/nowhere/libnccl.so.2"}});
  const CommandResult r = launch(2, train_args(folder, "cuda", cuda()), missing);
  EXPECT_EQ(r.exit_code, 4);
  EXPECT_THAT(r.out, AllOf(HasSubstr("rank 0: NCCL cannot be loaded: /nowhere/libnccl.so.2"),
                           HasSubstr("libnccl2")));
  const CommandResult old = launch(2, train_args(folder, "old", cuda()),
                                   emulated({{"HEDDLE_NCCL_DOUBLE", "version=21203"}}));
  EXPECT_EQ(old.exit_code, 4);
  EXPECT_THAT(old.out, HasSubstr("is NCCL 2.12.3, 2.14 is the oldest"));
  const CommandResult other =
      launch(2, train_args(folder, "other", cuda()), emulated({{"HEDDLE_NCCL_LIBRARY", kModule}}));
  EXPECT_EQ(other.exit_code, 4);
  EXPECT_THAT(other.out, HasSubstr("has no ncclGetVersion"));
  // One process needs no NCCL.
  const CommandResult alone =
      run_heddle(train_args(folder, "alone", cuda({"train.num_iterations=1"})), missing);
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  // device.kind: auto goes on with the CPU, and says why.
  Args automatic = train_args(folder, "auto", {"device.kind=auto", "attention.plugin_path=[]"});
  const CommandResult cpu = launch(2, automatic, missing);
  EXPECT_EQ(cpu.exit_code, 0) << cpu.out;
  EXPECT_THAT(cpu.out, HasSubstr("training on the CPU: rank 0: NCCL cannot be loaded"));
}

TEST(CudaRanks, BackendsThatDoNotFitAreRefused) {
  const TempFolder folder;
  const CommandResult gloo = launch(2, train_args(folder, "gloo", cuda({"dist.backend=gloo"})));
  EXPECT_EQ(gloo.exit_code, 3);
  EXPECT_THAT(gloo.out, HasSubstr("dist.backend gloo moves memory of the host"));
  const CommandResult nccl =
      launch(2, train_args(folder, "nccl", {"device.kind=cpu", "dist.backend=nccl"}));
  EXPECT_EQ(nccl.exit_code, 3);
  EXPECT_THAT(nccl.out, HasSubstr("dist.backend nccl moves memory of CUDA devices"));
}

TEST(CudaRanks, DoctorSaysWhatThereIs) {
  const CommandResult r = run_heddle({"doctor"}, emulated({{"CUDA_VISIBLE_DEVICES", "1,2"}}));
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, AllOf(HasSubstr("NCCL: 2.28.9 (" + std::string(kNccl) + ")"),
                           HasSubstr("device 1: Emulated sm_80"), HasSubstr("GPU-e5"),
                           HasSubstr("reaches the memory of 0"), Not(HasSubstr("device 2"))));
  const CommandResult missing =
      run_heddle({"doctor"}, emulated({{"HEDDLE_NCCL_LIBRARY", "/nowhere.so"}}));
  EXPECT_EQ(missing.exit_code, 0) << missing.err;
  EXPECT_THAT(missing.out,
              AllOf(HasSubstr("NCCL cannot be loaded: /nowhere.so"), HasSubstr("libnccl2")));
}

// ---- jobs that fail -----------------------------------------------------------------------------

CommandResult failing(const TempFolder& folder, const Args& more, const Env& env) {
  Args args = train_args(folder, "fails", cuda({"train.num_iterations=1000"}));
  args.insert(args.end(), more.begin(), more.end());
  return launch(3, args, emulated(env));
}

TEST(CudaRanks, ARankThatDiesIsNamedAndTheOthersEndWithCode6) {
  const TempFolder folder;
  const CommandResult r = failing(folder, {}, {{"HEDDLE_FAULT", "backward:1:2:kill"}});
  EXPECT_EQ(r.exit_code, 6) << r.out;
  // Of the step in which it was last heard of: a heartbeat may come too late to tell of step 2.
  EXPECT_THAT(r.out, AllOf(HasSubstr("first failure of 3 ranks: rank 1"),
                           AnyOf(HasSubstr(", step 1"), HasSubstr(", step 2"))));
}

TEST(CudaRanks, ARankThatIsLateIsNamedAtTheDeadline) {
  const TempFolder folder;
  const CommandResult r =
      failing(folder, {"dist.timeout_s=5"}, {{"HEDDLE_FAULT", "step:2:3:hang"}});
  EXPECT_EQ(r.exit_code, 6) << r.out;
  EXPECT_THAT(r.out, AllOf(HasSubstr("first failure of 3 ranks: rank 2"),
                           HasSubstr("it does not get on: over its deadline of 5 s")));
}

// Every rank waits, and none is to blame: the message is lost between them.
TEST(CudaRanks, ALostMessageEndsTheJobAtTheDeadline) {
  const TempFolder folder;
  const CommandResult r =
      failing(folder, {"dist.timeout_s=5"}, {{"HEDDLE_NCCL_DOUBLE", "deaf=1:9"}});
  EXPECT_EQ(r.exit_code, 6) << r.out;
  EXPECT_THAT(r.out, AllOf(HasSubstr("first failure of 3 ranks:"),
                           ContainsRegex("all ranks have waited in (all_gather|reduce_scatter) #"),
                           HasSubstr("messages between them are lost")));
}

TEST(CudaRanks, AnErrorOfTheLibraryIsFoundAndTold) {
  const TempFolder folder;
  const CommandResult r = failing(folder, {}, {{"HEDDLE_NCCL_DOUBLE", "error=1:9"}});
  EXPECT_EQ(r.exit_code, 6) << r.out;
  EXPECT_THAT(r.out, AllOf(HasSubstr("first failure of 3 ranks: rank 1"),
                           HasSubstr("unhandled system error (as HEDDLE_NCCL_DOUBLE asks)")));
}

TEST(CudaRanks, AnAbortThatBlocksDelaysTheEndOnly) {
  const TempFolder folder;
  const CommandResult r = failing(
      folder, {}, {{"HEDDLE_FAULT", "backward:1:2:throw"}, {"HEDDLE_NCCL_DOUBLE", "abort_blocks"}});
  EXPECT_EQ(r.exit_code, 6) << r.out;
  EXPECT_THAT(r.out, HasSubstr("first failure of 3 ranks: rank 1"));
}

// Without a watchdog: the communicator's own deadline and error checks.
CommandResult communicator(const std::string& mode, const Env& env = {}) {
  CommandResult r = run_command(
      {heddle_path(), "launch", "-n", "3", "--grace", "1", "--", HEDDLE_NCCL_TEST, mode},
      emulated(env), 60);
  r.out += r.err;
  return r;
}

TEST(NcclCommunicator, ItsOwnDeadlineEndsAWait) {
  const CommandResult r = communicator("late");
  EXPECT_EQ(r.exit_code, 6) << r.out;
  EXPECT_THAT(r.out, ContainsRegex("reduce_scatter #[0-9]+ between the devices was not over after "
                                   "2 s"));
}

TEST(NcclCommunicator, ARankThatHasGoneIsAnErrorOfTheOthers) {
  const CommandResult r = communicator("gone");
  EXPECT_THAT(r.out, HasSubstr("remote process exited or there was a network error"));
}

// ---- the benchmark ------------------------------------------------------------------------------

TEST(AllReduceCuda, MeasuresWhatThereIs) {
  const TempFolder folder;
  const CommandResult count = run_command({HEDDLE_ALL_REDUCE, "--devices"}, emulated());
  EXPECT_EQ(count.out, "4\n") << count.err;
  const Args small = {"--min-kib", "1", "--max-mib", "1", "--repeats", "2", "--out"};
  Args alone = {HEDDLE_ALL_REDUCE};
  alone.insert(alone.end(), small.begin(), small.end());
  alone.push_back(folder.path("one.json"));
  const CommandResult one = run_command(alone, emulated());
  EXPECT_EQ(one.exit_code, 0) << one.out << one.err;
  EXPECT_THAT(get_file(folder.path("one.json")),
              AllOf(HasSubstr("\"ranks\": 1"), HasSubstr("\"copies\""), HasSubstr("NCCL 2.28.9")));
  Args argv = {heddle_path(), "launch", "-n", "2", "--"};
  argv.insert(argv.end(), alone.begin(), alone.end() - 1);
  argv.push_back(folder.path("two.json"));
  const CommandResult two = run_command(argv, emulated());
  EXPECT_EQ(two.exit_code, 0) << two.out << two.err;
  EXPECT_THAT(get_file(folder.path("two.json")),
              AllOf(HasSubstr("\"ranks\": 2"), HasSubstr("\"all_reduce_bus_gb_s\"")));
}

}  // namespace
}  // namespace heddle::test
