// What is left of a job that failed: every rank writes failure-rank-N.json into the run folder by
// itself, without asking anybody; one of the survivors merges them into failure.json and prints one
// line. `heddle launch --collect` merges records of hosts that share no disk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framework/core/json.h"

namespace heddle {

// Which rank failed, as far as the one who says so knows.
struct FailedRank {
  int rank = -1;  // -1: none of the ranks (the launcher)
  std::string host;
  int64_t step = 0;  // it was working on; 0: before the first
  std::string activity;
  std::string why;

  // "rank 2 on host n2, step 13 (backward): ..."
  std::string text() const;
};

struct FailureRecord {
  int rank = 0;
  int world_size = 1;
  std::string host;
  int64_t pid = 0;
  std::string job_id;
  int64_t step = 0;
  std::string activity;
  std::string error;  // this rank's own, if it had one
  std::string time;   // UTC
  int exit_code = 0;
  FailedRank first;     // what it believes failed first
  bool agreed = false;  // `first` is what the ranks have agreed on, not this rank's guess
  std::string last_checkpoint;
};

json::object failure_to_json(const FailureRecord& record);
// Throws std::exception when `value` is none.
FailureRecord failure_from_json(const json::value& value);
std::string failure_file_name(int rank);
// Creates the folder when it is missing (a host that does not share rank 0's disk).
void write_failure_record(const std::string& folder, const FailureRecord& record);

struct FailureSummary {
  FailedRank first;
  int world_size = 1;
  std::vector<FailureRecord> records;  // by rank
  std::vector<int> silent;             // ranks without a record
  std::string last_checkpoint;

  std::string text() const;
};

// Of records that differ about the first failing rank those count that carry the ranks' agreement,
// then those that name a rank which left no record, then the earliest.
FailureSummary summarize_failures(std::vector<FailureRecord> records);

// The records in `folder`, of this job only unless `job_id` is empty.
std::vector<FailureRecord> read_failure_records(const std::string& folder,
                                                const std::string& job_id);
// Writes folder/failure.json.
void write_failure_summary(const std::string& folder, const FailureSummary& summary);
// What `heddle launch --collect` does: all records below `folder`, merged into folder/failure.json.
// Throws heddle::Error when there are none or when they are of several jobs.
FailureSummary collect_failures(const std::string& folder);

// Takes an earlier job's records out of a run folder that is used again.
void remove_failure_records(const std::string& folder);

// The newest complete checkpoint of a run folder; empty when there is none. Throws nothing.
std::string last_complete_checkpoint(const std::string& run_folder) noexcept;

std::string utc_now();

}  // namespace heddle
