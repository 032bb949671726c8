#include "framework/train/failure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "framework/core/error.h"
#include "framework/core/file.h"

namespace heddle {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

FailureRecord record(int rank, int first, const std::string& time, bool agreed = false) {
  FailureRecord r;
  r.rank = rank;
  r.world_size = 4;
  r.host = "n" + std::to_string(rank / 2);
  r.pid = 100 + rank;
  r.job_id = "job";
  r.step = 13;
  r.activity = "step 13, in all_reduce #5 for 0.2 s";
  r.time = time;
  r.exit_code = 6;
  r.first.rank = first;
  r.first.host = "n" + std::to_string(first / 2);
  r.first.step = 12;
  r.first.why = "its process ended";
  r.agreed = agreed;
  return r;
}

class Failure : public testing::Test {
 protected:
  Failure() : folder_(testing::TempDir() + "failure_test") {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~Failure() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_F(Failure, RecordsComeBackFromDisk) {
  FailureRecord want = record(2, 3, "2030-01-02T03:04:05.678Z", true);
  want.error = "[comm] \"quoted\"";
  want.last_checkpoint = "runs/a/checkpoints/step-000010";
  write_failure_record(folder_ + "/new/folder", want);
  const auto got = read_failure_records(folder_ + "/new/folder", "job");
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(json::serialize(failure_to_json(got[0])), json::serialize(failure_to_json(want)));
  EXPECT_TRUE(read_failure_records(folder_ + "/new/folder", "another job").empty());
}

TEST_F(Failure, WhatTheRanksAgreedOnCounts) {
  const auto s =
      summarize_failures({record(2, 0, "1"), record(0, 3, "2", true), record(1, 3, "3", true)});
  EXPECT_EQ(s.first.rank, 3);
  EXPECT_THAT(s.silent, ElementsAre(3));
  EXPECT_EQ(s.records[0].rank, 0);
}

TEST_F(Failure, WithoutAgreementASilentRankIsTheLikelyOne) {
  // Rank 1 blames a rank that has spoken, rank 2 one that never did.
  const auto s = summarize_failures({record(1, 2, "1"), record(2, 0, "2"), record(3, 2, "0")});
  EXPECT_EQ(s.first.rank, 0);
  // All have spoken: the earliest.
  const auto t = summarize_failures(
      {record(0, 2, "5"), record(1, 2, "3"), record(2, 3, "1"), record(3, 2, "4")});
  EXPECT_EQ(t.first.rank, 3);
}

TEST_F(Failure, SummaryNamesRankHostStepCauseAndHowToGoOn) {
  FailureRecord r = record(0, 3, "1");
  r.last_checkpoint = "runs/my-run/checkpoints/step-000010";
  const std::string text = summarize_failures({r, record(1, 3, "2")}).text();
  EXPECT_THAT(text, HasSubstr("rank 3 on host n1, step 12"));
  EXPECT_THAT(text, HasSubstr("its process ended"));
  EXPECT_THAT(text, HasSubstr("runs/my-run/checkpoints/step-000010"));
  EXPECT_THAT(text, HasSubstr("train.resume=auto log.name=my-run"));
  EXPECT_THAT(text, HasSubstr("No record of ranks 2, 3"));
  EXPECT_THAT(summarize_failures({record(1, 3, "2")}).text(), HasSubstr("No checkpoint"));
}

TEST_F(Failure, CollectMergesFoldersOfSeveralHosts) {
  write_failure_record(folder_ + "/n0", record(0, 3, "1", true));
  write_failure_record(folder_ + "/n1/run", record(2, 3, "2", true));
  std::ofstream(folder_ + "/n1/failure-rank-9.json") << "{ not a record";
  const auto s = collect_failures(folder_);
  EXPECT_EQ(s.first.rank, 3);
  EXPECT_THAT(s.silent, ElementsAre(1, 3));
  const auto written = json::read_file(folder_ + "/failure.json").as_object();
  EXPECT_EQ(json::value_to<std::string>(written.at("summary")), s.text());
  EXPECT_EQ(written.at("records").as_array().size(), 2u);
}

TEST_F(Failure, CollectRefusesNothingAndMixedJobs) {
  EXPECT_THROW(collect_failures(folder_), Error);
  FailureRecord other = record(1, 3, "1");
  other.job_id = "another";
  write_failure_record(folder_ + "/a", record(0, 3, "1"));
  write_failure_record(folder_ + "/b", other);
  EXPECT_THROW(collect_failures(folder_), Error);
}

TEST_F(Failure, OldRecordsGo) {
  write_failure_record(folder_, record(0, 3, "1"));
  write_failure_summary(folder_, summarize_failures({record(0, 3, "1")}));
  remove_failure_records(folder_);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(Failure, LastCompleteCheckpointSkipsUnfinishedOnes) {
  EXPECT_EQ(last_complete_checkpoint(folder_), "");
  for (const char* step : {"step-000005", "step-000010", "step-000015"}) {
    std::filesystem::create_directories(folder_ + "/checkpoints/" + step);
  }
  write_file_atomically(folder_ + "/checkpoints/step-000005/manifest.json", "{}");
  write_file_atomically(folder_ + "/checkpoints/step-000010/manifest.json", "{}");
  EXPECT_EQ(last_complete_checkpoint(folder_), folder_ + "/checkpoints/step-000010");
}

}  // namespace
}  // namespace heddle
