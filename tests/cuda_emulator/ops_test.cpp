// What the tests shared with the CPU do not see: products, bf16, memory of the device alone,
// determinism under every schedule, and waiting.
#include <cuda_bf16.h>

#include <array>

#include "framework/core/error.h"
#include "tests/unit/framework/device/every_op.h"
#include "tests/unit/framework/device/matmul_case.h"

namespace heddle::testing {
namespace {

class CudaProducts : public OpsTest {};
INSTANTIATE_TEST_SUITE_P(Emulated, CudaProducts, ::testing::Values(0));

TEST_P(CudaProducts, TransposesShapesAndFactors) {
  check_products(ops_);
}

float rounded(float x) {
  return __bfloat162float(__float2bfloat16_rn(x));
}
Floats rounded(Floats x) {
  for (float& v : x) v = rounded(v);
  return x;
}

// In bf16, a product is that of the rounded operands, whether they come as they are, announced as
// weights, or as bf16.
TEST_P(CudaProducts, Bf16RoundsOperandsOnce) {
  CudaOps bf16(test_stream(), true, 1 << 16);
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{5, 7, 9}, {64, 33, 16}, {1, 12, 200}}) {
    Floats x = noise(m * k, "x"), w = noise(n * k, "w");
    Floats xr = rounded(x), wr = rounded(w), want(m * n), got(m * n, NAN);
    ops_.matmul(matrix(xr.data(), m, k), false, matrix(wr.data(), n, k), true,
                matrix(want.data(), m, n), 1.0f, 0.0f);
    const Matrix a = matrix(x.data(), m, k), b = matrix(w.data(), n, k);
    bf16.matmul(a, false, b, true, matrix(got.data(), m, n), 1.0f, 0.0f);
    EXPECT_EQ(got, want);
    bf16.announce_weights(w.data(), n * k);
    got.assign(got.size(), NAN);
    bf16.matmul(a, false, b, true, matrix(got.data(), m, n), 1.0f, 0.0f);
    EXPECT_EQ(got, want);
    // What is announced is what was there then.
    const Floats old = w;
    w.assign(w.size(), 0.0f);
    bf16.matmul(a, false, b, true, matrix(got.data(), m, n), 1.0f, 0.0f);
    EXPECT_EQ(got, want);
    bf16.run_independent(0, {});
    bf16.matmul(a, false, b, true, matrix(got.data(), m, n), 1.0f, 0.0f);
    EXPECT_EQ(got, Floats(got.size(), 0.0f));
    w = old;
    std::vector<uint16_t> narrow(x.size());
    bf16.convert(a, {narrow.data(), m, k, k, DType::kBF16});
    bf16.matmul({narrow.data(), m, k, k, DType::kBF16}, false, b, true, matrix(got.data(), m, n),
                1.0f, 0.0f);
    EXPECT_EQ(got, want);
  }
}

// The loss in bf16: fp32 logits of rounded operands, a rounded gradient of the logits.
TEST_P(CudaProducts, Bf16HeadIsCloseToFp32) {
  CudaOps bf16(test_stream(), true, 1 << 16);
  constexpr int64_t kN = 12, kC = 24, kV = 70, kVp = 128;
  Floats h = rounded(noise(kN * kC, "h")), w = rounded(noise(kVp * kC, "w"));
  const Ids targets = some_tokens(kN, kV);
  const auto run = [&](CudaOps& ops, Floats& loss, Floats& dh, Floats& dw) {
    Floats scratch(5 * kVp);
    loss.assign(kN, NAN), dh.assign(kN * kC, NAN), dw.assign(kVp * kC, 0.0f);
    const Matrix dhm = matrix(dh.data(), kN, kC), dwm = matrix(dw.data(), kVp, kC);
    ops.head_loss(matrix(h.data(), kN, kC), matrix(w.data(), kVp, kC), kV, 15.0f, targets.data(),
                  matrix(scratch.data(), 5, kVp), loss.data(), nullptr, &dhm, &dwm);
  };
  Floats loss, dh, dw, loss16, dh16, dw16;
  run(ops_, loss, dh, dw);
  run(bf16, loss16, dh16, dw16);
  EXPECT_EQ(loss16, loss);  // operands were rounded already
  EXPECT_LT(relative_error(dh16, widen(dh)), 3e-3);
  EXPECT_LT(relative_error(dw16, widen(dw)), 3e-3);
  EXPECT_GT(relative_error(dw16, widen(dw)), 1e-5);
}

// All ops, twice, on tensors of the device's own: the same bits in whatever order blocks and warps
// run, and no access outside of an allocation or unordered between blocks (the emulator refuses it).
class CudaBits : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Emulated, CudaBits, ::testing::Bool());

TEST_P(CudaBits, DoNotDependOnTheSchedule) {
  emulator::allow_host_memory(true);
  EveryOp first;
  for (int schedule : {0, 3, 4}) {
    emulator::set_schedule(static_cast<uint64_t>(schedule));
    CudaOps ops(test_stream(), GetParam(), 1 << 16);
    EveryOp again;
    EveryOp& run = schedule == 0 ? first : again;
    run.run(ops);
    ops.settle();
    for (size_t i = 0; i < first.tensors().size(); ++i) {
      const Floats &a = *first.tensors()[i], &b = *run.tensors()[i];
      ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << "tensor " << i;
    }
  }
  emulator::set_schedule(0);
  emulator::allow_host_memory(false);
}

TEST_P(CudaBits, NoWaitingButForSums) {
  emulator::allow_host_memory(true);
  CudaOps ops(test_stream(), GetParam(), 1 << 16);
  EveryOp every;
  every.run(ops);  // scratch grows
  emulator::reset_counters();
  every.run(ops);
  EXPECT_EQ(emulator::counters().synchronisations, 1);  // sum_squares
  EXPECT_EQ(emulator::counters().allocations, 0);
  emulator::allow_host_memory(false);
}

TEST(CudaOps, LaunchErrorsAreThrown) {
  emulator::allow_host_memory(true);
  CudaOps ops(test_stream(), false, 1 << 16);
  Floats x(8);
  emulator::inject_error(cudaErrorIllegalAddress, 0);
  EXPECT_THROW(ops.relu2_forward(x.data(), 8), Error);
  ops.relu2_forward(x.data(), 8);
  emulator::allow_host_memory(false);
}

}  // namespace
}  // namespace heddle::testing
