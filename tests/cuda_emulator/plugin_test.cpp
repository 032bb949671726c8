// cuda_flash as its host sees it, on emulated device memory: what it refuses and why, that every
// launch's error comes back, and that a call neither allocates nor waits.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "cuda_emulator.h"
#include "plugins/abi/heddle_attention.h"

extern "C" const heddle_attention_plugin* cuda_flash_plugin_v1(const heddle_host* host,
                                                               heddle_text* err);

namespace {

heddle_device device_of(uint32_t arch) {
  heddle_device d{};
  d.struct_size = sizeof d;
  d.type = HEDDLE_DEVICE_CUDA;
  d.arch = arch;
  d.units = 108;
  return d;
}

class CudaFlash : public ::testing::Test {
 protected:
  CudaFlash() {
    host_.struct_size = sizeof host_;
    plugin_ = cuda_flash_plugin_v1(&host_, nullptr);
    const heddle_device device = device_of(80);
    EXPECT_EQ(plugin_->create(&host_, &device, &ctx_, nullptr), HEDDLE_OK);
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  ~CudaFlash() override {
    plugin_->destroy(ctx_);
    for (void* p : memory_) (void)cudaFree(p);
    (void)cudaStreamDestroy(stream_);
    (void)cudaGetLastError();
  }

  static heddle_attention_problem problem(uint32_t op, uint32_t dtype, int32_t dim = 64) {
    heddle_attention_problem p{};
    p.struct_size = sizeof p;
    p.op = op;
    p.device_type = HEDDLE_DEVICE_CUDA;
    p.dtype = dtype;
    p.mask = HEDDLE_MASK_CAUSAL;
    p.flags = HEDDLE_FLAG_LSE_OUT;
    p.align_bytes = 256;
    p.batch = 2, p.q_len = 10, p.k_len = 10;
    p.n_head = 4, p.n_kv_head = 2, p.head_dim = dim;
    p.scale = 0.125f;
    p.window_left = -1;
    const heddle_strides q{40 * dim, 4 * dim, dim}, k{20 * dim, 2 * dim, dim};
    p.q = p.out = q, p.k = p.v = k;
    if (op == HEDDLE_OP_BACKWARD) p.dout = p.dq = q, p.dk = p.dv = k;
    p.lse_stride_batch = 40, p.lse_stride_head = 10;
    return p;
  }

  // "head_dim got 12 want %8==0", of every reason; "yes: kernel" when there is none.
  std::string ask(const heddle_attention_problem& p, uint64_t* workspace = nullptr) {
    heddle_attention_reason reasons[4] = {};
    heddle_attention_verdict v{};
    v.struct_size = sizeof v;
    v.reasons = reasons;
    v.reason_capacity = 4;
    EXPECT_EQ(plugin_->query(ctx_, &p, &v), HEDDLE_OK);
    if (workspace) *workspace = v.workspace_bytes;
    std::string text = v.supported ? std::string("yes: ") + v.kernel : "";
    for (uint32_t i = 0; i < v.reason_count; ++i) {
      text += (i ? " / " : "") + std::string(reasons[i].field) + " got " + reasons[i].got +
              " want " + reasons[i].want;
    }
    return text;
  }

  void* memory(size_t bytes) {
    void* p = nullptr;
    EXPECT_EQ(cudaMalloc(&p, bytes), cudaSuccess);
    EXPECT_EQ(cudaMemset(p, 0, bytes), cudaSuccess);
    memory_.push_back(p);
    return p;
  }
  heddle_attention_call call_for(const heddle_attention_problem& p) {
    heddle_attention_call c{};
    c.struct_size = sizeof c;
    uint64_t workspace = 0;
    ask(p, &workspace);
    const size_t queries = 2 * 10 * 4 * 64 * 4, keys = queries / 2;
    c.q = memory(queries), c.k = memory(keys), c.v = memory(keys), c.out = memory(queries);
    c.lse = static_cast<float*>(memory(320));
    if (p.op == HEDDLE_OP_BACKWARD) {
      c.dout = memory(queries), c.dq = memory(queries), c.dk = memory(keys), c.dv = memory(keys);
    }
    if (p.op == HEDDLE_OP_DECODE) c.kv_len = static_cast<const int32_t*>(memory(8));
    c.workspace = workspace ? memory(workspace) : nullptr;
    c.workspace_bytes = workspace;
    c.stream = stream_;
    return c;
  }
  uint32_t enter(const heddle_attention_problem& p, const heddle_attention_call& c) {
    const auto f = p.op == HEDDLE_OP_FORWARD    ? plugin_->forward
                   : p.op == HEDDLE_OP_BACKWARD ? plugin_->backward
                                                : plugin_->decode;
    return f(ctx_, &p, &c);
  }

  heddle_host host_{};
  const heddle_attention_plugin* plugin_ = nullptr;
  heddle_attention_ctx* ctx_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::vector<void*> memory_;
};

TEST_F(CudaFlash, NamesTheKernelOfEachProblem) {
  EXPECT_EQ(ask(problem(HEDDLE_OP_FORWARD, HEDDLE_DTYPE_BF16)), "yes: mma_bf16_d64");
  EXPECT_EQ(ask(problem(HEDDLE_OP_FORWARD, HEDDLE_DTYPE_F16, 200)), "yes: mma_fp16_d256");
  EXPECT_EQ(ask(problem(HEDDLE_OP_BACKWARD, HEDDLE_DTYPE_BF16, 80)), "yes: mma_bf16_d96_atomic");
  heddle_attention_problem p = problem(HEDDLE_OP_BACKWARD, HEDDLE_DTYPE_BF16, 128);
  p.flags |= HEDDLE_FLAG_DETERMINISTIC;
  EXPECT_EQ(ask(p), "yes: mma_bf16_d128_ordered");
  EXPECT_EQ(ask(problem(HEDDLE_OP_DECODE, HEDDLE_DTYPE_BF16, 128)), "yes: mma_bf16_d128_split");
  EXPECT_EQ(ask(problem(HEDDLE_OP_FORWARD, HEDDLE_DTYPE_F32, 13)), "yes: plain_f32_d64");
}

TEST_F(CudaFlash, RefusesWithTheReason) {
  EXPECT_EQ(ask(problem(HEDDLE_OP_FORWARD, HEDDLE_DTYPE_BF16, 12)),
            "head_dim got 12 want %8==0 / strides got no multiple of 16 bytes want %16 bytes==0");
  EXPECT_EQ(ask(problem(HEDDLE_OP_BACKWARD, HEDDLE_DTYPE_BF16, 136)),
            "head_dim got 136 want <=128");
  EXPECT_EQ(ask(problem(HEDDLE_OP_FORWARD, HEDDLE_DTYPE_F32, 257)), "head_dim got 257 want <=256");
  heddle_attention_problem p = problem(HEDDLE_OP_FORWARD, HEDDLE_DTYPE_BF16);
  p.align_bytes = 8;
  EXPECT_EQ(ask(p), "align_bytes got 8 want >=16");
  p = problem(HEDDLE_OP_FORWARD, HEDDLE_DTYPE_BF16);
  p.k.token += 4;
  EXPECT_EQ(ask(p), "strides got no multiple of 16 bytes want %16 bytes==0");
  p = problem(HEDDLE_OP_BACKWARD, HEDDLE_DTYPE_BF16);
  p.max_workspace = 100;
  EXPECT_NE(ask(p).find("max_workspace got 100 want >="), std::string::npos);
}

// The grid has one dimension, so that more than 65535 heads are no limit; 2^31 blocks are one.
TEST_F(CudaFlash, ManyHeadsAreFineTooManyBlocksAreNot) {
  heddle_attention_problem p = problem(HEDDLE_OP_FORWARD, HEDDLE_DTYPE_BF16);
  p.batch = 100000;
  EXPECT_EQ(ask(p), "yes: mma_bf16_d64");
  p.q_len = p.k_len = 1 << 24;
  EXPECT_EQ(ask(p), "batch got 100000 want fewer tiles than 2^31");
  p.batch = 1;
  EXPECT_EQ(ask(p), "yes: mma_bf16_d64");
  p.q_len = INT64_C(1) << 40;
  EXPECT_NE(ask(p).find("q_len got"), std::string::npos);
  p = problem(HEDDLE_OP_FORWARD, HEDDLE_DTYPE_BF16);
  p.window_left = INT64_MAX;
  EXPECT_EQ(ask(p), "yes: mma_bf16_d64");
}

TEST_F(CudaFlash, RefusesOldDevices) {
  char text[128] = {};
  heddle_text err{text, sizeof text, 0};
  heddle_attention_ctx* ctx = nullptr;
  const heddle_device device = device_of(75);
  EXPECT_EQ(plugin_->create(&host_, &device, &ctx, &err), HEDDLE_REFUSED);
  EXPECT_STREQ(text, "the GPU is sm_75, expected sm_80 or newer");
}

TEST_F(CudaFlash, EveryLaunchIsCheckedAndNothingWaits) {
  for (const uint32_t op : {HEDDLE_OP_FORWARD, HEDDLE_OP_BACKWARD, HEDDLE_OP_DECODE}) {
    for (const uint32_t dtype : {HEDDLE_DTYPE_F32, HEDDLE_DTYPE_BF16}) {
      const heddle_attention_problem p = problem(op, dtype);
      heddle_attention_call c = call_for(p);
      char text[160] = {};
      heddle_text err{text, sizeof text, 0};
      c.err = &err;
      heddle::emulator::reset_counters();
      ASSERT_EQ(enter(p, c), HEDDLE_OK) << text;
      const heddle::emulator::Counters counted = heddle::emulator::counters();
      EXPECT_EQ(counted.allocations, 0);
      EXPECT_EQ(counted.synchronisations, 0);
      ASSERT_GE(counted.launches, 1);
      int64_t failing = 0;  // the n-th call of the runtime fails, until there is none
      for (;; ++failing) {
        heddle::emulator::inject_error(cudaErrorLaunchFailure, failing);
        const uint32_t status = enter(p, c);
        if (status == HEDDLE_OK) break;
        EXPECT_EQ(status, HEDDLE_DEVICE_ERROR) << "call " << failing;
        EXPECT_NE(std::string(text).find("cudaErrorLaunchFailure"), std::string::npos) << text;
      }
      heddle::emulator::inject_error(cudaSuccess, 0);
      EXPECT_GE(failing, counted.launches);
    }
  }
}

}  // namespace
