#include "plugins/conformance/memory.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <stdexcept>

#include "plugins/conformance/dtype.h"
#include "plugins/conformance/faults.h"
#include "plugins/conformance/fp_mode.h"
#include "plugins/conformance/layout.h"

namespace heddle::conformance {
namespace {

class MemoryTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { install_fault_handlers(); }
};

TEST_F(MemoryTest, ReadingBehindTheEndIsCaughtAndNamed) {
  const Block block = host_memory().allocate(100, 4, Edge::kEnd, "the workspace");
  volatile char* data = static_cast<char*>(block.data);
  const auto fault = run_guarded([&] { data[100] = 1; });
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->text, "SIGSEGV: writes 0 bytes past the end of the workspace");
  EXPECT_FALSE(run_guarded([&] { data[99] = 1; }));
  host_memory().release(block);
}

TEST_F(MemoryTest, ReadingBeforeTheStartIsCaughtAndNamed) {
  const Block block = host_memory().allocate(100, 4, Edge::kStart, "q");
  volatile char* data = static_cast<char*>(block.data);
  const auto fault = run_guarded([&] { (void)data[-8]; });
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->text, "SIGSEGV: reads 8 bytes before q");
  host_memory().release(block);
}

TEST_F(MemoryTest, WritesBesideTheBufferAreSeen) {
  Memory& memory = host_memory();
  for (const Edge edge : {Edge::kEnd, Edge::kStart}) {
    const Block block = memory.allocate(100, 64, edge, "out");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.data) % 64, 0u);
    int64_t offset = 0;
    EXPECT_FALSE(memory.overrun(block, &offset));
    const int64_t at = edge == Edge::kEnd ? -3 : 107;
    static_cast<char*>(block.data)[at] = 0;
    EXPECT_TRUE(memory.overrun(block, &offset));
    EXPECT_EQ(offset, at < 0 ? at : at - 100);
    memory.release(block);
  }
}

TEST_F(MemoryTest, ExceptionsAndAbortsEndTheCallOnly) {
  EXPECT_NE(run_guarded([] { throw std::runtime_error("boom"); })->text.find("boom"),
            std::string::npos);
  EXPECT_NE(run_guarded([] { std::abort(); })->text.find("SIGABRT"), std::string::npos);
  EXPECT_FALSE(run_guarded([] {}));
}

TEST(Dtype, RoundsToNearest) {
  EXPECT_EQ(rounded(HEDDLE_DTYPE_F32, 1.1f), 1.1f);
  EXPECT_EQ(rounded(HEDDLE_DTYPE_BF16, 1.00390625f), 1.0f);  // a tie goes to even
  EXPECT_EQ(rounded(HEDDLE_DTYPE_BF16, 257.0f), 256.0f);
  EXPECT_EQ(rounded(HEDDLE_DTYPE_F16, 2049.0f), 2048.0f);
  EXPECT_EQ(rounded(HEDDLE_DTYPE_F16, 65504.0f), 65504.0f);
  EXPECT_EQ(rounded(HEDDLE_DTYPE_F16, -1e6f), -HUGE_VALF);
  EXPECT_EQ(rounded(HEDDLE_DTYPE_F16, 0x1p-24f), 0x1p-24f);
  EXPECT_EQ(rounded(HEDDLE_DTYPE_F16, 0x1.8p-14f), 0x1.8p-14f);
}

// Every element of every tensor has a place of its own inside its storage.
TEST(Layouts, DoNotOverlap) {
  for (const Layout layout :
       {Layout::kContiguous, Layout::kPadded, Layout::kPacked, Layout::kHeadMajor}) {
    Case c;
    c.op = HEDDLE_OP_BACKWARD;
    c.batch = 2;
    c.q_len = 3;
    c.k_len = layout == Layout::kPacked ? 3 : 4;
    c.n_head = 4;
    c.n_kv_head = 2;
    c.head_dim = 5;
    c.layout = layout;
    const CallLayout l = lay_out(c);
    std::vector<std::vector<int>> used;
    for (const Storage& s : l.storages) used.emplace_back(static_cast<size_t>(s.elements), 0);
    const auto mark = [&](const Placement& p, int64_t tokens, int64_t heads) {
      for (int64_t b = 0; b < c.batch; ++b) {
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t h = 0; h < heads; ++h) {
            for (int64_t d = 0; d < c.head_dim; ++d) {
              ++used[static_cast<size_t>(p.storage)].at(static_cast<size_t>(p.index(b, t, h) + d));
            }
          }
        }
      }
    };
    for (const Placement* p : {&l.q, &l.out, &l.dout, &l.dq}) mark(*p, c.q_len, c.n_head);
    for (const Placement* p : {&l.k, &l.v, &l.dk, &l.dv}) mark(*p, c.k_len, c.n_kv_head);
    for (const auto& storage : used) {
      for (const int n : storage) EXPECT_LE(n, 1);
      EXPECT_EQ(storage.back(), 1);
    }
  }
}

}  // namespace
}  // namespace heddle::conformance
