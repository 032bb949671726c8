#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <thread>

#include "framework/core/file.h"
#include "framework/data/text_shards.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/framework/data/expect_error.h"

namespace heddle {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class TextCacheTest : public testing::Test {
 protected:
  TextSources sources() const {
    return {.train = {TextFormat::kFile, {folder_.path("a.txt")}}, .val_fraction = 0.1};
  }
  CachedText open() const { return cached_text_shards(sources(), folder_.path("cache")); }
  std::string shard(const CachedText& cached) const { return cached.text.train.shards[0].path; }

  void SetUp() override { folder_.write("a.txt", std::string(1000, 'q')); }

  test::TempFolder folder_;
};

TEST_F(TextCacheTest, IsReused) {
  const CachedText first = open();
  EXPECT_FALSE(first.reused);
  const auto written = std::filesystem::last_write_time(shard(first));
  const CachedText second = open();
  EXPECT_TRUE(second.reused);
  EXPECT_EQ(second.folder, first.folder);
  EXPECT_EQ(second.text.train.bytes, 900);
  EXPECT_EQ(second.text.val.bytes, 100);
  EXPECT_EQ(second.text.val.shards[0].path, first.text.val.shards[0].path);
  EXPECT_EQ(std::filesystem::last_write_time(shard(first)), written);
}

TEST_F(TextCacheTest, KnowsContentNotPlace) {
  const CachedText first = open();
  std::filesystem::rename(folder_.path("a.txt"), folder_.path("b.txt"));
  const CachedText moved = cached_text_shards(
      {.train = {TextFormat::kFile, {folder_.path("b.txt")}}, .val_fraction = 0.1},
      folder_.path("cache"));
  EXPECT_TRUE(moved.reused);
  folder_.write("a.txt", std::string(999, 'q') + "r");
  EXPECT_NE(open().key, first.key);
}

TEST_F(TextCacheTest, SettingsHaveFoldersOfTheirOwn) {
  const CachedText first = open();
  TextSources other = sources();
  other.val_fraction = 0.2;
  EXPECT_NE(cached_text_shards(other, folder_.path("cache")).key, first.key);
  other = sources();
  other.train.format = TextFormat::kParagraph;
  EXPECT_NE(cached_text_shards(other, folder_.path("cache")).key, first.key);
  other = sources();
  other.val = other.train;
  EXPECT_NE(cached_text_shards(other, folder_.path("cache")).key, first.key);
}

TEST_F(TextCacheTest, DamageOfAnyKindIsRepaired) {
  const CachedText first = open();
  const std::string path = shard(first), manifest = first.folder + "/manifest.json";
  const std::string good = test::get_file(path), good_manifest = test::get_file(manifest);
  const auto repaired = [&] {
    const CachedText again = open();
    return !again.reused && test::get_file(path) == good && open().reused;
  };
  std::filesystem::resize_file(path, 1500);
  EXPECT_TRUE(repaired()) << "cut short";
  std::string flipped = good;
  flipped[1500] ^= 1;
  std::ofstream(path, std::ios::binary) << flipped;
  EXPECT_TRUE(repaired()) << "one bit flipped";
  std::filesystem::remove(path);
  EXPECT_TRUE(repaired()) << "shard gone";
  std::filesystem::remove(manifest);
  EXPECT_TRUE(repaired()) << "manifest gone, as after a crash";
  std::ofstream(manifest) << good_manifest.substr(0, 40);
  EXPECT_TRUE(repaired()) << "manifest cut short";
  std::ofstream(manifest) << "{\"train\": 5}";
  EXPECT_TRUE(repaired()) << "manifest of another shape";
}

TEST_F(TextCacheTest, RacingWritersAllGetTheWholeText) {
  std::vector<CachedText> results(8);
  std::vector<std::thread> threads;
  for (CachedText& result : results) threads.emplace_back([&] { result = open(); });
  for (std::thread& thread : threads) thread.join();
  for (const CachedText& result : results) EXPECT_EQ(result.text.train.bytes, 900);
  EXPECT_TRUE(open().reused);
  EXPECT_THAT(folder_.files(),
              ElementsAre("a.txt", "manifest.json", "train_000000.bin", "val_000000.bin"));
}

// A disk that fills up after so many bytes.
class FullDisk : public FileSystem {
 public:
  class File : public OutputFile {
   public:
    File(std::unique_ptr<OutputFile> real, size_t& room) : real_(std::move(real)), room_(room) {}
    void write(const void* data, size_t bytes) override {
      if (bytes > room_) {
        throw environment_error("file", "cannot write: No space left on device", "free space");
      }
      room_ -= bytes;
      real_->write(data, bytes);
    }
    void close() override { real_->close(); }

   private:
    std::unique_ptr<OutputFile> real_;
    size_t& room_;
  };

  explicit FullDisk(size_t room) : room_(room) {}
  std::unique_ptr<OutputFile> create(const std::string& path) override {
    return std::make_unique<File>(posix_file_system().create(path), room_);
  }
  void create_directories(const std::string& path) override {
    posix_file_system().create_directories(path);
  }
  bool create_directory(const std::string& path) override {
    return posix_file_system().create_directory(path);
  }
  void rename(const std::string& from, const std::string& to) override {
    posix_file_system().rename(from, to);
  }
  void sync_directory(const std::string& path) override {
    posix_file_system().sync_directory(path);
  }
  void remove_all(const std::string& path) override { posix_file_system().remove_all(path); }

 private:
  size_t room_;
};

TEST_F(TextCacheTest, AFullDiskIsReportedAndLeavesNoHalfFile) {
  // In the header, the tokens of either shard, the manifest.
  for (const size_t room : {100, 1500, 2900, 4000, 4100}) {
    FullDisk disk(room);
    {
      const auto guard = replace_file_system(&disk);
      expect_error(ExitCode::kEnvironment, {"token cache", "No space left", "data.cache_dir"},
                   [&] { open(); });
    }
    EXPECT_THAT(folder_.files(), Not(Contains(HasSubstr(".tmp"))));
    EXPECT_THAT(folder_.files(), Not(Contains("manifest.json")));
  }
  EXPECT_FALSE(open().reused);
  EXPECT_TRUE(open().reused);
}

TEST_F(TextCacheTest, AFolderThatCannotBeMadeIsReported) {
  expect_error(ExitCode::kEnvironment, {"token cache", "data.cache_dir"},
               [&] { cached_text_shards(sources(), folder_.path("a.txt")); });
}

TEST(CacheDirTest, AutoFollowsTheEnvironment) {
  const char* home = std::getenv("HOME");
  const std::string old_home = home != nullptr ? home : "";
  ::setenv("XDG_CACHE_HOME", "/x/cache", 1);
  EXPECT_EQ(resolve_cache_dir("auto"), "/x/cache/heddle");
  ::unsetenv("XDG_CACHE_HOME");
  ::setenv("HOME", "/home/someone", 1);
  EXPECT_EQ(resolve_cache_dir("auto"), "/home/someone/.cache/heddle");
  ::unsetenv("HOME");
  EXPECT_THAT(resolve_cache_dir("auto"), HasSubstr("/heddle-"));
  EXPECT_EQ(resolve_cache_dir("here"), "here");
  if (home != nullptr) ::setenv("HOME", old_home.c_str(), 1);
}

}  // namespace
}  // namespace heddle
