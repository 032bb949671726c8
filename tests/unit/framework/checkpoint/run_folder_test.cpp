#include "framework/checkpoint/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <set>
#include <thread>

#include "framework/core/error.h"
#include "framework/core/file.h"
#include "framework/core/json.h"
#include "tests/unit/framework/core/fault_file_system.h"
#include "tests/support/temp_folder.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using test::put_file;
using test::MemoryFolder;

TEST(RunFolder, NeverTakesAnExistingOne) {
  MemoryFolder temp;
  const std::string dir = temp / "runs";
  EXPECT_EQ(create_run_folder(dir, "a"), dir + "/a");
  EXPECT_EQ(create_run_folder(dir, "a"), dir + "/a-2");
  put_file(dir + "/a-3", "somebody's file");
  EXPECT_EQ(create_run_folder(dir, "a"), dir + "/a-4");
  EXPECT_EQ(create_run_folder(dir, "b"), dir + "/b");
  EXPECT_EQ(create_run_folder(dir, "sweep/c"), dir + "/sweep/c");
  EXPECT_TRUE(fs::is_empty(dir + "/a"));
  EXPECT_EQ(checkpoints_folder(dir + "/a"), dir + "/a/checkpoints");
}

TEST(RunFolder, TwoCallersNeverShareOne) {
  MemoryFolder temp;
  std::vector<std::string> got(8);
  std::vector<std::thread> threads;
  for (auto& path : got) threads.emplace_back([&] { path = create_run_folder(temp.path(), "r"); });
  for (auto& t : threads) t.join();
  EXPECT_EQ(std::set<std::string>(got.begin(), got.end()).size(), got.size());
}

TEST(RunFolder, FailureNamesPathAndRemedy) {
  MemoryFolder temp;
  testing::FaultFileSystem faulty(testing::Fault::kOnce, 2);
  const auto guard = replace_file_system(&faulty);
  try {
    create_run_folder(temp.path(), "r");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kEnvironment);
    EXPECT_THAT(e.what(), HasSubstr(temp / "r"));
  }
}

TEST(RunLock, SecondHolderIsRefusedByName) {
  MemoryFolder temp;
  {
    const RunLock first(temp.path());
    try {
      const RunLock second(temp.path());
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kEnvironment);
      EXPECT_THAT(e.what(),
                  AllOf(HasSubstr(temp.path() + " is in use by another job: pid " +
                                  std::to_string(::getpid()) + " on host "),
                        HasSubstr("since 20"), HasSubstr("log.name"), HasSubstr(".lock")));
    }
  }
  EXPECT_FALSE(fs::exists(temp / ".lock"));
  const RunLock again(temp.path());
}

TEST(RunLock, FolderThatCannotBeWritten) {
  MemoryFolder temp;
  EXPECT_THROW(RunLock(temp / "absent"), Error);
}

// Runs `body` in a child that is then killed, and waits for it.
template <class Body>
void in_killed_child(Body&& body) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    body();
    ::raise(SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
}

class LockMethod : public ::testing::TestWithParam<FileLock::Method> {};

TEST_P(LockMethod, DiesWithItsProcess) {
  MemoryFolder temp;
  const std::string path = temp / "lock";
  in_killed_child([&] {
    auto lock = FileLock::try_acquire(path, nullptr, GetParam());
    if (lock) ::raise(SIGKILL);
  });
  ASSERT_TRUE(fs::exists(path)) << "the child held it";
  std::string holder;
  const auto lock = FileLock::try_acquire(path, &holder, GetParam());
  EXPECT_TRUE(lock.has_value()) << holder;
}

TEST_P(LockMethod, HoldsAgainstAnotherProcess) {
  MemoryFolder temp;
  const std::string path = temp / "lock";
  const auto lock = FileLock::try_acquire(path, nullptr, GetParam());
  ASSERT_TRUE(lock.has_value());
  const pid_t child = ::fork();
  if (child == 0) {
    std::string holder;
    const bool refused = !FileLock::try_acquire(path, &holder, GetParam()).has_value();
    ::_exit(refused && holder.starts_with("pid " + std::to_string(::getppid()) + " ") ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_P(LockMethod, GarbageInTheFileNamesNobody) {
  for (const char* text : {"", "{", "[]", "{\"pid\":\"x\"}", "\xff\xfe"}) {
    MemoryFolder temp;
    put_file(temp / "lock", text);
    EXPECT_TRUE(FileLock::try_acquire(temp / "lock", nullptr, GetParam()).has_value()) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(All, LockMethod,
                         ::testing::Values(FileLock::Method::kFlock, FileLock::Method::kRecord));

std::string record(int64_t pid, int64_t ticks, const std::string& host) {
  return json::serialize(
      json::object{{"pid", pid}, {"start_ticks", ticks}, {"host", host}, {"since", "then"}});
}

// Where flock is not to be had the record decides.
TEST(FileLockRecord, AnotherHostCountsAsAlive) {
  MemoryFolder temp;
  put_file(temp / "lock", record(1, 1, "some-other-host"));
  std::string holder;
  EXPECT_FALSE(FileLock::try_acquire(temp / "lock", &holder, FileLock::Method::kRecord));
  EXPECT_EQ(holder, "pid 1 on host some-other-host since then");
  // With flock the kernel knows better.
  EXPECT_TRUE(FileLock::try_acquire(temp / "lock", &holder, FileLock::Method::kFlock));
}

TEST(FileLockRecord, ARecycledPidIsNotTheHolder) {
  MemoryFolder temp;
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  put_file(temp / "lock", record(::getpid(), 1, host));  // our pid, another start time
  EXPECT_TRUE(FileLock::try_acquire(temp / "lock", nullptr, FileLock::Method::kRecord));
}

}  // namespace
}  // namespace heddle
