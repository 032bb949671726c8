#include "framework/device/cpu/cpu_ops.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "framework/core/buffer.h"
#include "framework/core/error.h"
#include "framework/core/parallel_for.h"

namespace heddle {
namespace {

static_assert(kSmearChannels == kernels::kSmearInputs);
static_assert(kValueGateChannels == kernels::kGateInputs);

// Elements are cut in units of 4 KiB, so that workers share no cache line, and a worker gets enough
// of them to be worth waking.
constexpr int64_t kUnit = 1024;
constexpr int64_t kElementGrain = 16 * kUnit;

// Sums are cut into at most this many pieces, whatever the number of threads.
constexpr int64_t kMaxPieces = 128;

template <class Body>
void parallel_elements(int64_t n, Body&& body) {
  parallel_for((n + kUnit - 1) / kUnit, kElementGrain / kUnit, [&](int64_t begin, int64_t end) {
    body(begin * kUnit, std::min(n, end * kUnit) - begin * kUnit);
  });
}

// kernel(begin, end, sums) over pieces of [0, n) that depend on n only; sums: `width` doubles,
// zeroed. Returns the pieces' sums added in order, in the thread's scratch.
template <class Kernel>
const double* sum_pieces(int64_t n, int64_t least, int64_t grain, int64_t width, Kernel&& kernel) {
  const int64_t length = std::max(least, (n + kMaxPieces - 1) / kMaxPieces);
  const int64_t pieces = std::max<int64_t>(1, (n + length - 1) / length);
  auto* sums =
      static_cast<double*>(thread_scratch(static_cast<size_t>(pieces * width) * sizeof(double)));
  std::fill(sums, sums + pieces * width, 0.0);
  parallel_for(pieces, std::max<int64_t>(1, grain / length), [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      kernel(p * length, std::min(n, (p + 1) * length), sums + p * width);
    }
  });
  for (int64_t p = 1; p < pieces; ++p) {
    for (int64_t i = 0; i < width; ++i) sums[i] += sums[p * width + i];
  }
  return sums;
}

// kernel(begin, end, sums) over ids [begin, end), cut where about the same number of rows has gone
// by; an id is never cut. Pieces depend on the tokens only. Returns as sum_pieces.
template <class Kernel>
const double* sum_id_pieces(const TokenIndex& index, int64_t width, Kernel&& kernel) {
  const int64_t rows = index.unique == 0 ? 0 : index.starts[index.unique];
  const int64_t pieces = std::clamp<int64_t>(rows / 8, 1, kMaxPieces);
  auto* sums =
      static_cast<double*>(thread_scratch(static_cast<size_t>(pieces * width) * sizeof(double)));
  std::fill(sums, sums + pieces * width, 0.0);
  const auto first_id = [&](int64_t piece) {
    const int64_t row = rows * piece / pieces;
    return std::lower_bound(index.starts, index.starts + index.unique, row) - index.starts;
  };
  parallel_tasks(pieces, [&](int64_t p) {
    const int64_t end = p + 1 == pieces ? index.unique : first_id(p + 1);
    kernel(first_id(p), end, sums + p * width);
  });
  for (int64_t p = 1; p < pieces; ++p) {
    for (int64_t i = 0; i < width; ++i) sums[i] += sums[p * width + i];
  }
  return sums;
}

void add_to(float* total, const double* sums, int64_t n) {
  for (int64_t i = 0; i < n; ++i) total[i] = static_cast<float>(total[i] + sums[i]);
}

}  // namespace

void* thread_scratch(size_t bytes) {
  constexpr size_t kLeast = 256 * 1024;
  thread_local HostBuffer buffer;
  if (buffer.bytes() < bytes || buffer.bytes() == 0) {
    buffer = HostBuffer(std::max(bytes, kLeast), "scratch of the CPU ops");
  }
  return buffer.data();
}

int64_t row_grain(int64_t width) {
  return std::max<int64_t>(1, kElementGrain / width);
}

void check_ids(const char* what, const int32_t* ids, int64_t n, int64_t lowest, int64_t limit) {
  for (int64_t i = 0; i < n; ++i) {
    if (ids[i] >= lowest && ids[i] < limit) continue;
    throw config_error(std::string(what) + " " + std::to_string(ids[i]) + " at row " +
                           std::to_string(i) + " is outside the vocabulary of " +
                           std::to_string(limit),
                       "check that model.vocab_size fits the tokenizer and the data");
  }
}

void CpuOps::zero(void* data, size_t bytes) {
  parallel_elements(static_cast<int64_t>(bytes), [&](int64_t at, int64_t n) {
    std::memset(static_cast<char*>(data) + at, 0, static_cast<size_t>(n));
  });
}

void CpuOps::copy(float* dst, const float* src, int64_t n) {
  parallel_elements(n, [&](int64_t at, int64_t count) {
    std::memcpy(dst + at, src + at, static_cast<size_t>(count) * sizeof(float));
  });
}

void CpuOps::add(float* dst, const float* src, int64_t n) {
  parallel_elements(n, [&](int64_t at, int64_t count) { table_.add(dst + at, src + at, count); });
}

void CpuOps::sums_of_squares(std::span<const std::span<const float>> tensors, double* sums) {
  for (const std::span<const float> x : tensors) {
    *sums++ = *sum_pieces(static_cast<int64_t>(x.size()), 4 * kUnit, kElementGrain, 1,
                          [&](int64_t begin, int64_t end, double* sum) {
                            *sum = table_.sum_squares(x.data() + begin, end - begin);
                          });
  }
}

void CpuOps::add_exact(float* x, double* high, double* low, int64_t n) {
  // Adding and subtracting 1.5 * 2^(52 + e) rounds to a multiple of 2^e.
  constexpr double kHigh = 1.5 * (int64_t{1} << 28), kLow = 1.5 / (int64_t{1} << 12);
  constexpr double kLimit = 32768.0;
  parallel_elements(n, [&](int64_t at, int64_t count) {
    for (int64_t i = at; i < at + count; ++i) {
      const double value = x[i];
      const double top = (value + kHigh) - kHigh;
      const double rest = value - top;
      high[i] += std::abs(value) < kLimit ? top : std::numeric_limits<double>::quiet_NaN();
      low[i] += (rest + kLow) - kLow;
      x[i] = 0.0f;
    }
  });
}

void CpuOps::round_exact(const double* high, const double* low, float* x, int64_t n) {
  parallel_elements(n, [&](int64_t at, int64_t count) {
    for (int64_t i = at; i < at + count; ++i) x[i] = static_cast<float>(high[i] + low[i]);
  });
}

namespace {

uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
float from_bf16(uint16_t x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}

}  // namespace

void CpuOps::convert(const Matrix& from, const Matrix& to) {
  HEDDLE_CHECK(from.rows == to.rows && from.cols == to.cols && from.dtype != to.dtype,
               "convert: shapes or types do not fit");
  parallel_for(from.rows, row_grain(from.cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (to.dtype == DType::kBF16) {
        auto* out = static_cast<uint16_t*>(to.data) + r * to.ld;
        for (int64_t c = 0; c < from.cols; ++c) out[c] = to_bf16(from.f32()[r * from.ld + c]);
      } else {
        const auto* in = static_cast<const uint16_t*>(from.data) + r * from.ld;
        for (int64_t c = 0; c < from.cols; ++c) to.f32()[r * to.ld + c] = from_bf16(in[c]);
      }
    }
  });
}

void CpuOps::index_tokens(const int32_t* tokens, int64_t n, int64_t vocab, TokenIndex* index) {
  check_ids("token id", tokens, n, 0, vocab);
  int32_t* counts = index->scratch;
  for (int64_t i = 0; i < n; ++i) ++counts[tokens[i]];
  int64_t unique = 0;
  int32_t row = 0;
  for (int64_t id = 0; id < vocab; ++id) {
    if (counts[id] == 0) continue;
    index->ids[unique] = static_cast<int32_t>(id);
    index->starts[unique++] = row;
    row += std::exchange(counts[id], row);
  }
  index->starts[unique] = row;
  index->unique = unique;
  index->rows = n;
  for (int64_t i = 0; i < n; ++i) index->order[counts[tokens[i]]++] = static_cast<int32_t>(i);
  for (int64_t u = 0; u < unique; ++u) counts[index->ids[u]] = 0;
}

void CpuOps::embed_norm_forward(const int32_t* tokens, int64_t n, const Matrix& wte, float* u,
                                float* rstd) {
  check_ids("token id", tokens, n, 0, wte.rows);
  const kernels::EmbedNorm op{tokens, wte.f32(), wte.ld, wte.cols, kRmsEps, u, rstd};
  parallel_for(n, row_grain(wte.cols),
               [&](int64_t begin, int64_t end) { table_.embed_norm_forward(op, begin, end); });
}

void CpuOps::embed_norm_backward(const float* du, const float* u, const float* rstd,
                                 const TokenIndex& index, const Matrix& dwte) {
  const kernels::EmbedNormGrad op{du,           u,         rstd,       index.order, index.ids,
                                  index.starts, dwte.cols, dwte.f32(), dwte.ld};
  sum_id_pieces(index, 0, [&](int64_t begin, int64_t end, double*) {
    table_.embed_norm_backward(op, begin, end);
  });
}

void CpuOps::smear_forward(const float* u, int64_t batch, int64_t seq_len, int64_t channels,
                           const float* w, const float* lambda, const float* prev, float* x,
                           float* gate) {
  const kernels::Smear op{u, w, prev, *lambda, seq_len, channels, x, gate};
  parallel_for(batch * seq_len, row_grain(channels),
               [&](int64_t begin, int64_t end) { table_.smear_forward(op, begin, end); });
}

void CpuOps::smear_backward(const float* dx, const float* u, const float* gate, int64_t batch,
                            int64_t seq_len, int64_t channels, const float* w, const float* lambda,
                            float* du, float* dw, float* dlambda) {
  const kernels::SmearGrad op{dx, u, gate, w, *lambda, seq_len, channels, du};
  const double* sums = sum_pieces(batch * seq_len, 8, row_grain(channels), kSmearChannels + 1,
                                  [&](int64_t begin, int64_t end, double* piece) {
                                    table_.smear_backward(op, begin, end, piece);
                                  });
  add_to(dw, sums, kSmearChannels);
  add_to(dlambda, sums + kSmearChannels, 1);
}

void CpuOps::mix_norm_forward(const Mix& mix, const float* x, const float* z, int64_t n,
                              int64_t channels, float* y, float* h, float* rstd) {
  const bool changes = mix.a != nullptr || mix.b != nullptr || y != x;
  const kernels::MixNorm op{x,
                            mix.b == nullptr ? nullptr : z,
                            mix.a == nullptr ? 1.0f : *mix.a,
                            mix.b == nullptr ? 0.0f : mix.sign * *mix.b,
                            channels,
                            kRmsEps,
                            changes ? y : nullptr,
                            h,
                            rstd};
  parallel_for(n, row_grain(channels),
               [&](int64_t begin, int64_t end) { table_.mix_norm_forward(op, begin, end); });
}

void CpuOps::mix_norm_backward(const Mix& mix, const float* dh, const float* h, const float* rstd,
                               const float* dy, const float* x, const float* z, int64_t n,
                               int64_t channels, float* dx, float* dz, float* da, float* db) {
  const bool has_a = mix.a != nullptr, has_b = mix.b != nullptr;
  const kernels::MixNormGrad op{dh,
                                h,
                                rstd,
                                dy,
                                has_a ? x : nullptr,
                                has_b ? z : nullptr,
                                has_a ? *mix.a : 1.0f,
                                has_b ? mix.sign * *mix.b : 0.0f,
                                channels,
                                dx,
                                has_b ? dz : nullptr};
  const double* sums =
      sum_pieces(n, 8, row_grain(channels), 2, [&](int64_t begin, int64_t end, double* piece) {
        table_.mix_norm_backward(op, begin, end, piece);
      });
  if (has_a) *da = static_cast<float>(*da + sums[0]);
  if (has_b) *db = static_cast<float>(*db + mix.sign * sums[1]);
}

namespace {

kernels::Rope rope(const RopeNorm& op, const Matrix& x, const float* rstd) {
  HEDDLE_CHECK(x.cols == op.heads * op.head_dim && op.head_dim % 2 == 0,
               "rope_norm: columns are not heads * head_dim");
  return {op.cos,  op.sin,   op.seq_len, op.pos0, op.heads, op.head_dim,
          op.norm, op.scale, kRmsEps,    x.f32(), x.ld,     const_cast<float*>(rstd)};
}

}  // namespace

void CpuOps::rope_norm_forward(const RopeNorm& op, const Matrix& x, float* rstd) {
  const kernels::Rope rows = rope(op, x, rstd);
  parallel_for(x.rows, row_grain(x.cols),
               [&](int64_t begin, int64_t end) { table_.rope_norm_forward(rows, begin, end); });
}

void CpuOps::rope_norm_backward(const RopeNorm& op, const Matrix& y, const float* rstd,
                                const Matrix& dx) {
  const kernels::RopeGrad rows{rope(op, dx, rstd), y.f32(), y.ld};
  parallel_for(dx.rows, row_grain(dx.cols),
               [&](int64_t begin, int64_t end) { table_.rope_norm_backward(rows, begin, end); });
}

void CpuOps::value_embed_forward(const float* h, int64_t channels, const float* wg,
                                 const Matrix& ve, const int32_t* tokens, int64_t n_kv_head,
                                 const Matrix& v, float* gate) {
  check_ids("token id", tokens, v.rows, 0, ve.rows);
  const kernels::ValueEmbed op{h,         channels,           wg,      ve.f32(), ve.ld, tokens,
                               n_kv_head, v.cols / n_kv_head, v.f32(), v.ld,     gate};
  parallel_for(v.rows, row_grain(v.cols),
               [&](int64_t begin, int64_t end) { table_.value_embed_forward(op, begin, end); });
}

void CpuOps::value_embed_backward(const Matrix& dv, const float* h, int64_t channels,
                                  const float* wg, const Matrix& ve, const int32_t* /*tokens*/,
                                  const TokenIndex& index, int64_t n_kv_head, const float* gate,
                                  float* dwg, float* dh, const Matrix& dve) {
  const kernels::ValueEmbedGrad op{dv.f32(),  dv.ld,        h,         channels,
                                   wg,        ve.f32(),     ve.ld,     index.order,
                                   index.ids, index.starts, n_kv_head, dv.cols / n_kv_head,
                                   gate,      dh,           dve.f32(), dve.ld};
  const int64_t width = n_kv_head * kValueGateChannels;
  const double* sums = sum_id_pieces(index, width, [&](int64_t begin, int64_t end, double* piece) {
    table_.value_embed_backward(op, begin, end, piece);
  });
  add_to(dwg, sums, width);
}

void CpuOps::relu2_forward(float* x, int64_t n) {
  parallel_elements(n, [&](int64_t at, int64_t count) { table_.relu2_forward(x + at, count); });
}

void CpuOps::relu2_backward(float* da, const float* a, int64_t n) {
  parallel_elements(
      n, [&](int64_t at, int64_t count) { table_.relu2_backward(da + at, a + at, count); });
}

}  // namespace heddle
