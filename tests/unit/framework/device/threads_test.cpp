// The same bits for any number of threads.
#include "tests/unit/framework/device/every_op.h"
#include "tests/unit/framework/device/support.h"

namespace heddle::testing {
namespace {

class Threads : public OpsTest {};
HEDDLE_ON_EVERY_TABLE(Threads);

TEST_P(Threads, DoNotChangeAnyBit) {
  set_num_threads(1);
  EveryOp one;
  one.run(ops_);
  for (int threads : {2, 3}) {
    set_num_threads(threads);
    EveryOp many;
    many.run(ops_);
    for (size_t i = 0; i < one.tensors().size(); ++i) {
      const Floats &a = *one.tensors()[i], &b = *many.tensors()[i];
      EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0)
          << "tensor " << i << ", " << threads << " threads";
    }
  }
}

// Reductions of more rows than there are pieces.
TEST_P(Threads, LongSums) {
  const Floats x = noise(1000003, "x");
  set_num_threads(1);
  const double one = ops_.sum_squares(x.data(), 1000003);
  for (int threads : {2, 3}) {
    set_num_threads(threads);
    EXPECT_EQ(ops_.sum_squares(x.data(), 1000003), one);
  }
}

}  // namespace
}  // namespace heddle::testing
