#include "framework/attention/services.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "framework/core/parallel_for.h"

namespace heddle {
namespace {

// What a body saw, from any thread.
struct Seen {
  heddle_host host;
  std::vector<std::atomic<int>> index;
  std::vector<std::atomic<int>> busy;
  std::atomic<int64_t> shortest{1 << 30};
  std::atomic<int> clashes{0};
  std::atomic<int> nested{0};

  Seen(const heddle_host& h, size_t n) : host(h), index(n), busy(64) {}

  static void body(void* arg, int64_t begin, int64_t end, uint32_t worker) {
    Seen& seen = *static_cast<Seen*>(arg);
    if (seen.busy[worker].fetch_add(1) != 0) ++seen.clashes;
    for (int64_t i = begin; i < end; ++i) ++seen.index[static_cast<size_t>(i)];
    int64_t old = seen.shortest.load();
    while (end - begin < old && !seen.shortest.compare_exchange_weak(old, end - begin)) {
    }
    seen.busy[worker].fetch_sub(1);
  }

  static void nesting_body(void* arg, int64_t begin, int64_t end, uint32_t worker) {
    Seen& seen = *static_cast<Seen*>(arg);
    for (int64_t i = begin; i < end; ++i) ++seen.index[static_cast<size_t>(i)];
    struct Inner {
      Seen* seen;
      uint32_t worker;
    } inner{&seen, worker};
    seen.host.parallel_for(
        seen.host.user, 10, 1,
        [](void* a, int64_t b, int64_t e, uint32_t w) {
          const Inner& in = *static_cast<Inner*>(a);
          if (w == in.worker) in.seen->nested += static_cast<int>(e - b);
        },
        &inner);
  }
};

class ServicesTest : public ::testing::Test {
 protected:
  ServicesTest() { set_num_threads(3); }
  ~ServicesTest() override { set_num_threads(0); }
  const std::string label_ = "test";
  const heddle_host host_ = make_host_services(&label_);
};

TEST_F(ServicesTest, CoversEveryIndexOnceInPiecesOfAtLeastTheGrain) {
  for (const int64_t n : {0, 1, 5, 100, 12345}) {
    for (const int64_t grain : {0, 1, 7, 1000}) {
      Seen seen(host_, static_cast<size_t>(n));
      host_.parallel_for(host_.user, n, grain, &Seen::body, &seen);
      for (const auto& count : seen.index) ASSERT_EQ(count.load(), 1);
      EXPECT_EQ(seen.clashes.load(), 0);
      if (n > 0) {
        EXPECT_GE(seen.shortest.load(), std::min(n, grain));
      }
    }
  }
}

TEST_F(ServicesTest, NestedCallsStayOnTheirWorker) {
  Seen seen(host_, 20);
  host_.parallel_for(host_.user, 20, 1, &Seen::nesting_body, &seen);
  for (const auto& count : seen.index) EXPECT_EQ(count.load(), 1);
  EXPECT_EQ(seen.nested.load(), 200);
}

TEST_F(ServicesTest, IntroducesTheHost) {
  EXPECT_EQ(host_.struct_size, sizeof(heddle_host));
  EXPECT_STREQ(host_.name, "heddle");
  EXPECT_EQ(host_.num_workers(host_.user), 3u);
  host_.log(host_.user, 0, "a debug line");
  host_.log(host_.user, 3, nullptr);
}

}  // namespace
}  // namespace heddle
