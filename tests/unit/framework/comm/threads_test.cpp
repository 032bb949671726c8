#include "framework/comm/threads.h"

#include <gtest/gtest.h>

#include "framework/comm/rendezvous.h"
#include "framework/core/parallel_for.h"

namespace heddle {
namespace {

std::vector<int> range(int begin, int end) {
  std::vector<int> values;
  for (int i = begin; i < end; ++i) values.push_back(i);
  return values;
}

struct Case {
  const char* name;
  std::vector<std::vector<int>> masks;
  std::vector<int> threads;  // per rank
};

TEST(FairShare, Table) {
  const std::vector<Case> cases = {
      {"alone", {range(0, 8)}, {8}},
      {"two unbound ranks", {range(0, 8), range(0, 8)}, {4, 4}},
      {"three unbound ranks on two processors", {range(0, 2), range(0, 2), range(0, 2)}, {1, 1, 1}},
      {"three unbound ranks on eight", {range(0, 8), range(0, 8), range(0, 8)}, {2, 2, 2}},
      {"bound to a core each", {{0}, {1}}, {1, 1}},
      {"bound to the same core", {{0}, {0}}, {1, 1}},
      {"four processors each (slot:PE=4)", {range(0, 4), range(4, 8)}, {4, 4}},
      {"two sockets, two ranks on each",
       {range(0, 8), range(0, 8), range(8, 16), range(8, 16)},
       {4, 4, 4, 4}},
      {"one rank bound inside another's mask", {range(0, 4), {3}}, {3, 1}},
      {"numbers above 1024", {range(2000, 2004)}, {4}},
  };
  for (const Case& c : cases) {
    for (size_t rank = 0; rank < c.masks.size(); ++rank) {
      EXPECT_EQ(fair_share(c.masks[rank], c.masks), c.threads[rank]) << c.name;
    }
  }
}

TEST(DefaultThreads, AloneTakesTheWholeMask) {
  const auto comm = connect_ranks(DistConfig{}, LaunchContext{}).comm;
  const ThreadBudget budget = default_threads(*comm);
  EXPECT_EQ(budget.threads, available_processors());
  EXPECT_EQ(budget.processors, available_processors());
}

}  // namespace
}  // namespace heddle
