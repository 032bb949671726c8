// Every range is compared with the definition of visibility, pair by pair, over all small problems.
#include "kernels/common/attention_ranges.h"

#include <gtest/gtest.h>

#include <ostream>
#include <vector>

namespace heddle::kernels {

std::ostream& operator<<(std::ostream& os, const AttentionMask& m) {
  return os << "q_len " << m.q_len << " k_len " << m.k_len << " q_pos0 " << m.q_pos0 << " k_pos0 "
            << m.k_pos0 << " window " << m.window_left << " causal " << m.causal;
}

namespace {

bool visible(const AttentionMask& m, int64_t i, int64_t j) {
  const int64_t query = m.q_pos0 + i, key = m.k_pos0 + j;
  return (!m.causal || key <= query) && (m.window_left < 0 || query - key <= m.window_left);
}

template <class Check>
void for_each_mask(int64_t longest, Check&& check) {
  for (int64_t q_len = 0; q_len <= longest; ++q_len) {
    for (int64_t k_len = 0; k_len <= longest; ++k_len) {
      for (int64_t shift = -longest - 1; shift <= longest + 1; ++shift) {
        for (const int64_t window : {-1, 0, 1, 2, 3, 5, 100}) {
          for (const bool causal : {true, false}) {
            check(AttentionMask{q_len, k_len, 1000 + shift, 1000, window, causal});
          }
        }
      }
    }
  }
}

TEST(AttentionRanges, RowsAndColumnsFollowTheDefinition) {
  for_each_mask(6, [](const AttentionMask& m) {
    for (int64_t i = 0; i < m.q_len; ++i) {
      const Range keys = keys_of_query(m, i);
      ASSERT_TRUE(keys.begin >= 0 && keys.end <= m.k_len && keys.begin <= m.k_len) << m;
      for (int64_t j = 0; j < m.k_len; ++j) {
        ASSERT_EQ(keys.contains(j), visible(m, i, j)) << m << " i " << i << " j " << j;
      }
    }
    for (int64_t j = 0; j < m.k_len; ++j) {
      const Range queries = queries_of_key(m, j);
      for (int64_t i = 0; i < m.q_len; ++i) {
        ASSERT_EQ(queries.contains(i), visible(m, i, j)) << m << " i " << i << " j " << j;
      }
    }
  });
}

TEST(AttentionRanges, HullsCoverAndCommonRangesHold) {
  for_each_mask(5, [](const AttentionMask& m) {
    for (int64_t a = 0; a < m.q_len; ++a) {
      for (int64_t b = a + 1; b <= m.q_len; ++b) {
        const Range hull = keys_of_queries(m, {a, b}), common = common_keys_of_queries(m, {a, b});
        for (int64_t j = 0; j < m.k_len; ++j) {
          bool some = false, all = true;
          for (int64_t i = a; i < b; ++i) {
            some |= visible(m, i, j);
            all &= visible(m, i, j);
          }
          ASSERT_TRUE(!some || hull.contains(j)) << m << " rows " << a << ".." << b << " j " << j;
          ASSERT_EQ(common.contains(j), all) << m << " rows " << a << ".." << b << " j " << j;
        }
      }
    }
    for (int64_t a = 0; a < m.k_len; ++a) {
      for (int64_t b = a + 1; b <= m.k_len; ++b) {
        const Range hull = queries_of_keys(m, {a, b});
        const Range common = common_queries_of_keys(m, {a, b});
        for (int64_t i = 0; i < m.q_len; ++i) {
          bool some = false, all = true;
          for (int64_t j = a; j < b; ++j) {
            some |= visible(m, i, j);
            all &= visible(m, i, j);
          }
          ASSERT_TRUE(!some || hull.contains(i)) << m << " keys " << a << ".." << b << " i " << i;
          ASSERT_EQ(common.contains(i), all) << m << " keys " << a << ".." << b << " i " << i;
        }
      }
    }
  });
}

// A causal tile that sees something skips every block that holds no visible pair, and compares
// nothing in a block whose pairs are all visible.
TEST(AttentionRanges, BlocksAreExact) {
  for_each_mask(6, [](const AttentionMask& m) {
    for (int64_t tile = 1; tile <= 3; ++tile) {
      for (int64_t block = 1; block <= 4; ++block) {
        for (int64_t a = 0; a < m.q_len; a += tile) {
          const Range rows{a, min_i64(a + tile, m.q_len)};
          const BlockRange blocks = key_blocks(m, rows, block);
          for (int64_t n = 0; n * block < m.k_len; ++n) {
            bool some = false, all = (n + 1) * block <= m.k_len;
            for (int64_t i = rows.begin; i < rows.end; ++i) {
              for (int64_t j = n * block; j < min_i64((n + 1) * block, m.k_len); ++j) {
                some |= visible(m, i, j);
                all &= visible(m, i, j);
              }
            }
            ASSERT_TRUE(!some || blocks.visit.contains(n)) << m << " block " << n;
            ASSERT_EQ(blocks.unmasked.contains(n), all)
                << m << " rows " << rows.begin << ".." << rows.end << " block " << n << " of "
                << block;
          }
          const bool every_row_sees = [&] {
            for (int64_t i = rows.begin; i < rows.end; ++i) {
              if (keys_of_query(m, i).empty()) return false;
            }
            return true;
          }();
          if (every_row_sees) {
            const Range first = keys_of_query(m, rows.begin);
            const Range last = keys_of_query(m, rows.end - 1);
            ASSERT_EQ(blocks.visit.begin, first.begin / block) << m;
            ASSERT_EQ(blocks.visit.end, (last.end - 1) / block + 1) << m;
          }
        }
      }
    }
  });
}

TEST(AttentionRanges, QueryBlocksMirrorKeyBlocks) {
  for_each_mask(6, [](const AttentionMask& m) {
    for (int64_t block = 1; block <= 4; ++block) {
      for (int64_t a = 0; a < m.k_len; a += 2) {
        const Range columns{a, min_i64(a + 2, m.k_len)};
        const BlockRange blocks = query_blocks(m, columns, block);
        for (int64_t n = 0; n * block < m.q_len; ++n) {
          bool some = false, all = (n + 1) * block <= m.q_len;
          for (int64_t i = n * block; i < min_i64((n + 1) * block, m.q_len); ++i) {
            for (int64_t j = columns.begin; j < columns.end; ++j) {
              some |= visible(m, i, j);
              all &= visible(m, i, j);
            }
          }
          ASSERT_TRUE(!some || blocks.visit.contains(n)) << m << " block " << n;
          ASSERT_EQ(blocks.unmasked.contains(n), all) << m << " block " << n;
        }
      }
    }
  });
}

TEST(AttentionRanges, PairsAreCountedExactly) {
  for_each_mask(7, [](const AttentionMask& m) {
    int64_t pairs = 0;
    for (int64_t rows = 0; rows <= m.q_len; ++rows) {
      ASSERT_EQ(visible_pairs(m, rows), pairs) << m << " rows " << rows;
      if (rows == m.q_len) break;
      for (int64_t j = 0; j < m.k_len; ++j) pairs += visible(m, rows, j);
    }
  });
}

TEST(AttentionRanges, WindowsOfATrainingStep) {
  // A quarter window shows 0.44 of the causal pairs.
  const AttentionMask full{2048, 2048, 0, 0, -1, true};
  const AttentionMask quarter{2048, 2048, 0, 0, 512, true};
  EXPECT_EQ(visible_pairs(full), 2048 * 2049 / 2);
  EXPECT_EQ(visible_pairs(quarter), 512 * 513 / 2 + (2048 - 512) * 513);
  EXPECT_EQ(key_blocks(quarter, {1024, 1088}, 64).visit.size(), 9);
  EXPECT_EQ(key_blocks(quarter, {1024, 1088}, 64).unmasked.size(), 7);
}

TEST(AttentionRanges, LargePositionsDoNotOverflow) {
  const int64_t far = int64_t{1} << 60;
  const AttentionMask m{4, 8, far, far - 4, 2, true};
  EXPECT_EQ(keys_of_query(m, 0).begin, 2);
  EXPECT_EQ(keys_of_query(m, 0).end, 5);
  EXPECT_EQ(visible_pairs(m), 12);
  const AttentionMask apart{4, 8, -far, far, 2, true};
  EXPECT_TRUE(keys_of_query(apart, 3).empty());
  EXPECT_EQ(visible_pairs(apart), 0);
}

}  // namespace
}  // namespace heddle::kernels
