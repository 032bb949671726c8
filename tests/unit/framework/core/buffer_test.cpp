#include "framework/core/buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "framework/core/error.h"
#include "framework/core/rng.h"

namespace heddle {
namespace {

using ::testing::HasSubstr;

TEST(HostBuffer, IsZeroedAndAligned) {
  for (const size_t bytes : {size_t{1}, size_t{63}, size_t{64}, size_t{1000}, size_t{3} << 20}) {
    const HostBuffer b(bytes, "test");
    EXPECT_EQ(b.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % kBufferAlign, 0u);
    const auto* p = static_cast<const unsigned char*>(b.data());
    EXPECT_TRUE(std::all_of(p, p + bytes, [](unsigned char c) { return c == 0; }));
  }
  EXPECT_EQ(HostBuffer(0, "nothing").data(), nullptr);
}

TEST(HostBuffer, MovesItsMemory) {
  HostBuffer a(100, "a");
  void* p = a.data();
  HostBuffer b(std::move(a));
  EXPECT_EQ(b.data(), p);
  EXPECT_EQ(a.data(), nullptr);
  EXPECT_EQ(a.bytes(), 0u);
  HostBuffer c(10, "c");
  c = std::move(b);
  EXPECT_EQ(c.data(), p);
  EXPECT_EQ(c.bytes(), 100u);
}

TEST(HostBuffer, RefusalNamesSizeAndPurpose) {
  // So many that rounding up to the alignment would wrap around.
  const size_t bytes = std::numeric_limits<size_t>::max();
  try {
    const HostBuffer b(bytes, "activations");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kEnvironment);
    EXPECT_THAT(e.what(), HasSubstr(std::to_string(bytes >> 20) + " MiB for activations"));
    EXPECT_THAT(e.what(), HasSubstr("train.device_batch_size"));
  }
}

TEST(Arena, PacksAlignsAndNames) {
  Arena arena;
  const size_t a = arena.reserve("a", 1), b = arena.reserve("b", 65),
               none = arena.reserve("none", 0);
  EXPECT_EQ(arena.bytes(), 64u + 128u + 64u);
  const HostBuffer memory(arena.bytes(), "arena");
  arena.commit(memory.data());
  EXPECT_EQ(arena.data(a), memory.data());
  EXPECT_EQ(arena.f32(b), memory.f32() + 16);
  EXPECT_NE(arena.data(none), nullptr);
  EXPECT_EQ(arena.entries()[b].name, "b");
  EXPECT_EQ(arena.entries()[b].bytes, 65u);
}

TEST(Arena, ReleasedBytesAreTakenAgain) {
  Arena arena;
  const size_t a = arena.reserve("a", 1024), b = arena.reserve("b", 512),
               c = arena.reserve("c", 64);
  arena.release(a);
  arena.release(b);
  // The two holes are one of 1536 bytes.
  const size_t d = arena.reserve("d", 1536);
  EXPECT_EQ(arena.entries()[d].offset, 0u);
  EXPECT_EQ(arena.bytes(), 1024u + 512u + 64u);
  // The best hole is taken, not the first.
  arena.release(d);
  const size_t e = arena.reserve("e", 1024), f = arena.reserve("f", 64);
  EXPECT_EQ(arena.entries()[f].offset, 1024u);
  arena.release(e);
  const size_t g = arena.reserve("g", 448);
  EXPECT_EQ(arena.entries()[g].offset, 1088u);
  (void)c;
}

TEST(Arena, AHoleAtTheEndGrows) {
  Arena arena;
  arena.reserve("a", 64);
  const size_t b = arena.reserve("b", 256);
  arena.release(b);
  const size_t c = arena.reserve("c", 1024);
  EXPECT_EQ(arena.entries()[c].offset, 64u);
  EXPECT_EQ(arena.bytes(), 64u + 1024u);
}

TEST(Arena, LiveEntriesNeverOverlap) {
  Rng rng(1, "arena");
  for (int round = 0; round < 50; ++round) {
    Arena arena;
    std::vector<size_t> live;
    size_t live_bytes = 0, peak = 0;
    for (int i = 0; i < 60; ++i) {
      if (!live.empty() && rng.below(3) == 0) {
        const size_t k = rng.below(static_cast<uint32_t>(live.size()));
        live_bytes -= arena.entries()[live[k]].bytes;
        arena.release(live[k]);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(k));
        continue;
      }
      const size_t id = arena.reserve("e", 64 * (1 + rng.below(40)));
      const auto& e = arena.entries()[id];
      ASSERT_EQ(e.offset % kBufferAlign, 0u);
      ASSERT_LE(e.offset + e.bytes, arena.bytes());
      for (const size_t other : live) {
        const auto& o = arena.entries()[other];
        ASSERT_TRUE(e.offset + e.bytes <= o.offset || o.offset + o.bytes <= e.offset);
      }
      live.push_back(id);
      live_bytes += e.bytes;
      peak = std::max(peak, live_bytes);
    }
    EXPECT_GE(arena.bytes(), peak);
    EXPECT_LE(arena.bytes(), 2 * peak);
  }
}

TEST(ArenaDeathTest, MisuseIsCaught) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Arena arena;
  const size_t a = arena.reserve("a", 64);
  EXPECT_DEATH((void)arena.data(a), "arena used before commit");
  arena.release(a);
  EXPECT_DEATH(arena.release(a), "entry a was released twice");
  alignas(kBufferAlign) char memory[64];
  arena.commit(memory);
  EXPECT_DEATH(arena.reserve("late", 64), "reserve\\(late\\) after commit");
  EXPECT_DEATH(arena.commit(memory), "wants a block, once");
}

}  // namespace
}  // namespace heddle
