// What is on disk after a save that went wrong, at every call it makes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/file_lock.h"
#include "framework/core/error.h"
#include "framework/core/file.h"
#include "tests/unit/framework/checkpoint/contents.h"
#include "tests/unit/framework/core/fault_file_system.h"
#include "tests/support/temp_folder.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;
using testing::Contents;
using testing::expect_exact;
using testing::Fault;
using testing::FaultFileSystem;
using ::testing::HasSubstr;
using testing::Killed;
using test::put_file;
using test::MemoryFolder;

int temporaries_in(const std::string& folder) {
  int n = 0;
  for (const auto& e : fs::directory_iterator(folder)) {
    n += e.path().filename().string().starts_with(".tmp");
  }
  return n;
}

enum class Outcome { kSaved, kFailed, kKilled };

struct Attempt {
  Outcome outcome;
  std::string error;
  bool struck;
  std::string call;  // the one that failed
};

Attempt save_with(Fault fault, int at, const std::string& folder, const Contents& contents,
                  int64_t keep) {
  FaultFileSystem faulty(fault, at);
  const auto guard = replace_file_system(&faulty);
  Attempt a{Outcome::kSaved, "", false, ""};
  try {
    save_checkpoint(testing::alone(), folder, contents.all, keep);
  } catch (const Error& e) {
    a.outcome = Outcome::kFailed;
    a.error = e.what();
  } catch (const Killed&) {
    a.outcome = Outcome::kKilled;
  }
  a.struck = faulty.struck();
  if (a.struck) a.call = faulty.log()[static_cast<size_t>(at) - 1];
  return a;
}

// Saves `next` over a folder that holds step 10, with the fault at call 1, 2, 3, ... until none
// strikes, and hands each result to `check`.
template <class Check>
void sweep(Fault fault, const Contents& next, int64_t keep, Check&& check) {
  int at = 1;
  for (;; ++at) {
    MemoryFolder temp;
    const std::string folder = temp / "run/checkpoints";
    save_checkpoint(testing::alone(), folder, Contents(10).all, keep);
    const Attempt a = save_with(fault, at, folder, next, keep);
    SCOPED_TRACE("call " + std::to_string(at) + ": " + a.call);
    check(a, folder);
    // Whatever happened, the next save works and tidies up.
    save_checkpoint(testing::alone(), folder, Contents(30).all, keep);
    expect_exact(Checkpoint::open(folder), 30);
    EXPECT_EQ(temporaries_in(folder), 0);
    EXPECT_EQ(static_cast<int64_t>(list_checkpoints(folder).size()), keep);
    if (!a.struck) break;
    ASSERT_LT(at, 200);
  }
  EXPECT_GT(at, 15) << "the faults cannot have covered a save";
}

void expect_previous_or_new(const Attempt& a, const std::string& folder) {
  std::string skipped;
  const auto newest = open_newest(folder, &skipped);
  ASSERT_TRUE(newest.has_value());
  EXPECT_EQ(skipped, "");
  if (newest->step() == 10) {
    EXPECT_NE(a.outcome, Outcome::kSaved);
    expect_exact(*newest, 10);
  } else {
    expect_exact(*newest, 20);
  }
}

class SaveFault : public ::testing::TestWithParam<Fault> {};

TEST_P(SaveFault, AtEveryCallLeavesThePreviousOrTheNew) {
  for (const int64_t keep : {1, 2}) {
    sweep(GetParam(), Contents(20), keep, expect_previous_or_new);
  }
}

TEST_P(SaveFault, WhileReplacingAStepLeavesTheOldOrTheNewContents) {
  sweep(GetParam(), Contents(10, 5), 1, [](const Attempt& a, const std::string& folder) {
    const auto newest = open_newest(folder, nullptr);
    ASSERT_TRUE(newest.has_value());
    const bool is_new = newest->state().at("variant").as_int64() == 5;
    expect_exact(*newest, 10, is_new ? 5 : 0);
    EXPECT_TRUE(is_new || a.outcome != Outcome::kSaved);
  });
}

TEST_P(SaveFault, AtTheVeryFirstSaveLeavesNothingOrAll) {
  for (int at = 1;; ++at) {
    MemoryFolder temp;
    const std::string folder = temp / "run/checkpoints";
    const Attempt a = save_with(GetParam(), at, folder, Contents(20), 2);
    const auto newest = open_newest(folder, nullptr);
    if (newest) expect_exact(*newest, 20);
    EXPECT_TRUE(newest.has_value() || a.outcome != Outcome::kSaved);
    if (!a.struck) break;
  }
}

INSTANTIATE_TEST_SUITE_P(All, SaveFault,
                         ::testing::Values(Fault::kOnce, Fault::kFull, Fault::kKill));

TEST(SaveFaults, FailureSaysWhatStandsAndLeavesNoTemporary) {
  sweep(Fault::kFull, Contents(20), 2, [](const Attempt& a, const std::string& folder) {
    if (a.outcome != Outcome::kFailed) return;
    EXPECT_THAT(a.error, HasSubstr("step 20 was not saved"));
    EXPECT_THAT(a.error, HasSubstr("injected fault"));
    EXPECT_THAT(a.error, HasSubstr("free space on the disk"));
    if (!fs::exists(folder + "/step-000020")) {
      EXPECT_THAT(a.error, HasSubstr("untouched"));
    } else {
      EXPECT_THAT(a.error, HasSubstr("power loss"));
    }
    EXPECT_EQ(temporaries_in(folder), 0);
    EXPECT_TRUE(fs::exists(folder + "/step-000010"));
  });
}

// The order that durability rests on: every file synced, then the manifest, then the folder, then
// the rename, then the parent, and only then does an old one go.
TEST(SaveFaults, OrderOfCalls) {
  MemoryFolder temp;
  const std::string folder = temp / "run/checkpoints";
  save_checkpoint(testing::alone(), folder, Contents(10).all, 1);
  FaultFileSystem recorder(Fault::kOnce, 1 << 30);
  {
    const auto guard = replace_file_system(&recorder);
    save_checkpoint(testing::alone(), folder, Contents(20).all, 1);
  }
  std::vector<std::string> order;
  for (const std::string& call : recorder.log()) {
    if (!call.starts_with("write")) order.push_back(call);
  }
  EXPECT_EQ(
      order,
      (std::vector<std::string>{
          "mkdirs checkpoints", "sync run", "mkdir .tmp-step-000020", "create model.safetensors",
          "close model.safetensors", "create optimizer.safetensors", "close optimizer.safetensors",
          "create state.json", "close state.json", "create manifest.json", "close manifest.json",
          "sync .tmp-step-000020", "rename step-000020", "sync checkpoints",
          "rename .tmp-step-000010.removed", "remove .tmp-step-000010.removed"}));
}

TEST(SaveFaults, ReadOnlyFolderIsNamed) {
  // A file where the folder should be: root ignores permissions, nobody can make a folder in a
  // file.
  MemoryFolder temp;
  put_file(temp / "run", "");
  try {
    save_checkpoint(testing::alone(), temp / "run/checkpoints", Contents(10).all, 1);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kEnvironment);
    EXPECT_THAT(e.what(), HasSubstr(temp / "run/checkpoints"));
    EXPECT_THAT(e.what(), HasSubstr("step 10 was not saved"));
  }
}

TEST(Temporaries, StaleOnesGoAndLiveOnesStay) {
  MemoryFolder temp;
  const std::string folder = temp / "checkpoints";
  fs::create_directories(folder + "/.tmp-step-000005");
  put_file(folder + "/.tmp-step-000005/model.safetensors", "half");
  fs::create_directories(folder + "/.tmp-step-000006");
  put_file(folder + "/.tmp-step-000006/.writer", "{\"pid\":");  // killed while writing the record
  fs::create_directories(folder + "/.tmp-step-000007");
  std::string holder;
  auto live = FileLock::try_acquire(folder + "/.tmp-step-000007/.writer", &holder);
  ASSERT_TRUE(live.has_value());
  save_checkpoint(testing::alone(), folder, Contents(10).all, 1);
  EXPECT_FALSE(fs::exists(folder + "/.tmp-step-000005"));
  EXPECT_FALSE(fs::exists(folder + "/.tmp-step-000006"));
  EXPECT_TRUE(fs::exists(folder + "/.tmp-step-000007"));
  // And a save of the very step that somebody is writing is refused.
  EXPECT_THROW(save_checkpoint(testing::alone(), folder, Contents(7).all, 1), Error);
  EXPECT_TRUE(fs::exists(folder + "/.tmp-step-000007/.writer"));
  expect_exact(Checkpoint::open(folder), 10);
}

// A real process, really killed, while it saves one step after the other.
TEST(Temporaries, SigkillDuringSaves) {
  MemoryFolder temp;
  const std::string folder = temp / "checkpoints";
  save_checkpoint(testing::alone(), folder, Contents(1).all, 2);
  int64_t last = 1;
  for (int round = 0; round < 10; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (int64_t step = last + 1;; ++step) save_checkpoint(testing::alone(), folder, Contents(step).all, 2);
    }
    // Ends in the middle of some save: which one differs from round to round.
    const auto newest_step = [&] {
      const auto list = list_checkpoints(folder);
      return list.empty() ? 0 : list.front().step;
    };
    while (newest_step() < last + 2) {
      ASSERT_EQ(::waitpid(child, nullptr, WNOHANG), 0) << "the child could not save";
      ::usleep(200);
    }
    ::usleep(static_cast<useconds_t>(round) * 700);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    std::string skipped;
    const auto newest = open_newest(folder, &skipped);
    ASSERT_TRUE(newest.has_value());
    EXPECT_EQ(skipped, "");
    EXPECT_GE(newest->step(), last + 2);
    last = newest->step();
    expect_exact(*newest, last);
  }
}

}  // namespace
}  // namespace heddle
