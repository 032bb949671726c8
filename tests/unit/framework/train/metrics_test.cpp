#include "framework/train/metrics.h"

#include <gtest/gtest.h>

#include "framework/core/file.h"
#include "tests/support/temp_folder.h"

namespace heddle {
namespace {

TEST(MetricsFile, OneObjectALine) {
  const test::MemoryFolder folder;
  MetricsFile file(folder / "m.jsonl", 0);
  file.write({{"step", 1}, {"train/loss", 2.5}});
  file.write({{"step", 2}, {"train/loss", 2.25}});
  EXPECT_EQ(read_text_file(folder / "m.jsonl"),
            "{\"step\":1,\"train/loss\":2.5E0}\n{\"step\":2,\"train/loss\":2.25E0}\n");
}

TEST(MetricsFile, ResumeDropsWhatWillBeComputedAgainAndCutLines) {
  const test::MemoryFolder folder;
  {
    MetricsFile file(folder / "m.jsonl", 0);
    for (int step = 1; step <= 5; ++step) file.write({{"step", step}});
  }
  const std::string text = read_text_file(folder / "m.jsonl");
  write_file_atomically(folder / "m.jsonl", text + "{\"step\":6,\"tr");
  MetricsFile file(folder / "m.jsonl", 3);
  file.write({{"step", 4}});
  EXPECT_EQ(read_text_file(folder / "m.jsonl"),
            "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"step\":4}\n");
}

TEST(MetricsFile, PeakMemoryIsPlausible) {
  EXPECT_GT(peak_resident_bytes(), 1 << 20);
  EXPECT_LT(peak_resident_bytes(), int64_t{1} << 40);
}

}  // namespace
}  // namespace heddle
