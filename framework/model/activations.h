// The memory of a forward and backward pass, planned before the first step. Offsets come first, so
// that a dry run can print the plan without owning the memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "framework/core/buffer.h"
#include "framework/device/device.h"
#include "framework/model/spec.h"

namespace heddle {

// What backward needs of one block. N rows.
struct BlockActivations {
  float* h = nullptr;     // (N, C) normed block input
  float* rstd = nullptr;  // (N)
  float* qkv = nullptr;   // (N, C + 2*K*D) what attention reads: q, k after RoPE and norm, v gated
  float* q_rstd = nullptr;  // (N, H)
  float* k_rstd = nullptr;  // (N, K)
  float* gate = nullptr;    // (N, K) value gate
  float* o = nullptr;       // (N, C)
  float* lse = nullptr;     // (B, H, T)
  float* h2 = nullptr;      // (N, C) normed MLP input
  float* rstd2 = nullptr;   // (N)
  float* a = nullptr;       // (N, 4C) relu^2; backward takes relu as its root
};

// Rows whose logits exist at one time in a pass of `rows` rows.
int64_t logit_rows(int64_t rows, int64_t padded_vocab, bool training);

class Activations {
 public:
  // `workspace` is the largest that attention asks for.
  Activations(const ModelSpec& spec, int64_t max_batch, int64_t seq_len, bool training,
              size_t workspace);
  Activations(const Activations&) = delete;
  Activations& operator=(const Activations&) = delete;

  size_t bytes() const { return arena_.bytes(); }
  size_t logits_bytes() const;
  void commit(void* base);

  const int64_t rows;        // N at most
  const int64_t chunk_rows;  // rows whose logits exist at one time
  const size_t workspace_bytes;

  int32_t* tokens = nullptr;   // (N)
  int32_t* targets = nullptr;  // (N)
  TokenIndex index;            // training
  float* loss = nullptr;       // (N)
  int32_t* argmax = nullptr;   // (N)

  float* u = nullptr;  // (N, C) normed embeddings before smear
  float* u_rstd = nullptr;
  float* smear_gate = nullptr;
  // Residual stream: [i] is the input of block i, [n_layer] the last output. Only where backward
  // must read it again does every block have its own buffer.
  std::vector<float*> stream;
  std::vector<BlockActivations> blocks;
  float* final_mix = nullptr;   // (N, C)
  float* final_h = nullptr;     // (N, C)
  float* final_rstd = nullptr;  // (N)
  float* head_rows = nullptr;   // (chunk, C) rows gathered for logits
  float* logits = nullptr;      // (chunk, Vp)
  char* workspace = nullptr;

  // Gradients of the above, training only.
  float* dfinal = nullptr;  // (N, C)
  float* dx = nullptr;      // (N, C) of the stream
  float* dx0 = nullptr;     // (N, C) of the embedding that every block adds
  float* dxb = nullptr;     // (N, C) of what backout subtracts
  float* dh = nullptr;      // (N, C)
  float* da = nullptr;      // (N, 4C)
  float* dout = nullptr;    // (N, C)
  float* dqkv = nullptr;    // (N, C + 2*K*D)

 private:
  // n elements; `where` points at them after commit(). Returns the arena's entry.
  template <class T>
  size_t reserve(const char* name, int64_t n, T** where);
  // `where` will point at what another name already has.
  template <class T>
  void share(size_t entry, T** where);
  void plan_batch(const ModelSpec& spec, bool training);
  void plan_stream(const ModelSpec& spec, bool training);
  void plan_blocks(const ModelSpec& spec, bool training);
  void plan_head(const ModelSpec& spec);
  void plan_head_and_backward(const ModelSpec& spec);

  Arena arena_;
  std::vector<std::function<void()>> setters_;
  int64_t padded_vocab_;
};

}  // namespace heddle
