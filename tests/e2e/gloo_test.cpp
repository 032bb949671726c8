// heddle train as processes that only the plain environment connects.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>

#include "tests/e2e/support/command.h"

namespace heddle::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Args = std::vector<std::string>;

// A listener on a free port of 127.0.0.1.
class Port {
 public:
  Port() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(at);
    if (bind(fd_, reinterpret_cast<sockaddr*>(&at), length) != 0 || listen(fd_, 1) != 0) abort();
    getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &length);
    number_ = ntohs(at.sin_port);
  }
  ~Port() { release(); }
  void release() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  std::string number() const { return std::to_string(number_); }

 private:
  int fd_;
  int number_ = 0;
};

Env place(int rank, int world_size, const std::string& port) {
  const std::string r = std::to_string(rank), n = std::to_string(world_size);
  return {{"RANK", r},
          {"WORLD_SIZE", n},
          {"LOCAL_RANK", r},
          {"LOCAL_WORLD_SIZE", n},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", port}};
}

Args golden_args(const std::string& out, const std::string& name) {
  return {heddle_path(),
          "train",
          HEDDLE_SOURCE_DIR "/tests/e2e/sssl_gqa.yaml",
          "train.init_from=" HEDDLE_SOURCE_DIR "/tests/golden/sssl_gqa.safetensors",
          "train.num_iterations=5",
          "train.threads=1",
          "checkpoint.at_end=true",
          "dist.timeout_s=20",
          "log.dir=" + out,
          "log.name=" + name};
}

// The processes at the same time; results in their order.
std::vector<CommandResult> run_together(const std::vector<std::pair<Args, Env>>& commands) {
  std::vector<std::unique_ptr<BackgroundCommand>> running;
  for (const auto& [argv, env] : commands) {
    running.push_back(std::make_unique<BackgroundCommand>(argv, env));
  }
  std::vector<CommandResult> results;
  for (const auto& command : running) results.push_back(command->wait(100));
  return results;
}

std::string free_port() {
  return Port().number();
}

std::map<std::string, std::string> tensor_files(const std::string& run) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(run + "/checkpoints")) {
    if (entry.path().extension() == ".safetensors") {
      files[entry.path().filename()] = get_file(entry.path());
    }
  }
  return files;
}

TEST(Gloo, TrainsWithThePlainEnvironmentToTheBitsOfMpi) {
  TempFolder folder;
  const std::string port = free_port();
  const auto results = run_together({{golden_args(folder.path(), "gloo"), place(0, 2, port)},
                                     {golden_args(folder.path(), "gloo"), place(1, 2, port)}});
  for (const CommandResult& r : results) ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(results[0].out + results[0].err, HasSubstr("rank 0 of 2"));
  const auto losses = read_metric(folder.path("gloo/metrics.jsonl"), "train/loss");
  ASSERT_EQ(losses.size(), 5u);
  const auto files = tensor_files(folder.path("gloo"));
  ASSERT_FALSE(files.empty());
#ifdef HEDDLE_WITH_MPI
  Args mpi = golden_args(folder.path(), "mpi");
  mpi.erase(mpi.begin());
  const CommandResult r = run_mpi(2, mpi);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(losses, read_metric(folder.path("mpi/metrics.jsonl"), "train/loss"));
  EXPECT_TRUE(files == tensor_files(folder.path("mpi"))) << "a tensor differs";
#endif
}

struct Bad {
  const char* name;
  std::vector<std::pair<Args, Env>> commands;
  std::vector<std::string> parts;  // of what some rank says
};

TEST(Gloo, BadInputEndsWithCode6AndAReason) {
  TempFolder folder;
  Args args = golden_args(folder.path(), "bad");
  args.push_back("dist.timeout_s=2");
  const Port taken;
  const std::string port = free_port();
  const auto with = [](Env env, const std::string& name, const std::string& value) {
    env[name] = value;
    return env;
  };
  Env no_local = place(0, 2, port);
  no_local.erase("LOCAL_RANK");
  const std::vector<Bad> cases = {
      {"port in use", {{args, place(0, 2, taken.number())}}, {taken.number(), "in use"}},
      {"name that does not resolve",
       {{args, with(place(0, 2, port), "MASTER_ADDR", "no-such-host.invalid")}},
       {"no-such-host.invalid", "does not resolve"}},
      {"rank 0 elsewhere",
       {{args, with(place(0, 2, port), "MASTER_ADDR", "192.0.2.1")}},
       {"Rank 0 runs on host"}},
      {"other world size",
       {{args, place(0, 2, port)}, {args, place(1, 3, port)}},
       {"rank 0 counts 2 ranks, got 3"}},
      {"duplicate rank",
       {{args, place(0, 3, port)}, {args, place(1, 3, port)}, {args, place(1, 3, port)}},
       {"another process is rank 1"}},
      {"other job",
       {{args, with(place(0, 2, port), "HEDDLE_JOB_ID", "one")},
        {args, with(place(1, 2, port), "HEDDLE_JOB_ID", "two")}},
       {"serves job 'one', got job 'two'"}},
      {"other token",
       {{args, with(place(0, 2, port), "HEDDLE_STORE_TOKEN", "a")},
        {args, with(place(1, 2, port), "HEDDLE_STORE_TOKEN", "b")}},
       {"HEDDLE_STORE_TOKEN"}},
      {"a rank is missing", {{args, place(0, 2, port)}}, {"1 of 2 ranks have not come", ": 1"}},
      {"missing LOCAL_RANK", {{args, no_local}}, {"LOCAL_RANK missing"}},
      {"negative rank", {{args, place(-1, 2, port)}}, {"RANK", "'-1'"}},
      {"huge size",
       {{args, with(place(0, 2, port), "WORLD_SIZE", "4000000000")}},
       {"WORLD_SIZE", "'4000000000'"}},
  };
  for (const Bad& c : cases) {
    SCOPED_TRACE(c.name);
    std::string all;
    for (const CommandResult& r : run_together(c.commands)) {
      EXPECT_EQ(r.exit_code, 6) << r.err;
      all += r.err;
    }
    for (const std::string& part : c.parts) EXPECT_THAT(all, HasSubstr(part));
  }
}

}  // namespace
}  // namespace heddle::test
