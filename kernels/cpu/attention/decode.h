// Decode: the newest q_len tokens of each batch row against a cache of kv_len[b] tokens.
//
// Few queries and many keys: bound by the stream of K and V, which all query rows (head of the
// group, token) of a kv head share while a chunk of keys is in L1. A task is (batch row, split of
// the keys, kv heads beside each other): all heads unless there are few rows and keys, because a
// key's heads are one piece of memory and the processor fetches ahead only what it reads in order.
// Where keys are split, a second phase merges the parts in order. Each row visits exactly the keys
// it sees, so what lies outside the window or past kv_len is never read for it. From kLanes query
// tokens on the forward kernel, which works by lanes of queries, does the same job faster.
#pragma once

#include "kernels/cpu/attention/forward.h"

namespace heddle::kernels::cpu::HEDDLE_ISA {

inline constexpr int64_t kDecodeKeys = 64;  // keys of a chunk
inline constexpr int64_t kDecodeTasks = 8;  // wanted at least
inline constexpr int64_t kMinKeysOfSplit = 128;

struct DecodePlan {
  int64_t group, rows, dim, padded_dim, splits;  // rows: of one kv head
  int64_t heads, bands;                          // kv heads of a task, such tasks of a batch row

  HEDDLE_INLINE explicit DecodePlan(const AttentionProblem& p) {
    group = p.n_head / p.n_kv_head;
    rows = group * p.q_len;
    dim = p.head_dim;
    padded_dim = round_up(dim, kLanes);
    const bool windowed = p.window_left >= 0 && p.causal;
    const int64_t most_keys = windowed ? min_i64(p.k_len, p.window_left + p.q_len) : p.k_len;
    const int64_t useful = max_i64(1, ceil_div(most_keys, kMinKeysOfSplit));
    splits = clamp_i64(kDecodeTasks / max_i64(1, p.batch), 1, useful);
    const int64_t wanted = ceil_div(kDecodeTasks, max_i64(1, p.batch * splits));
    heads = ceil_div(p.n_kv_head, min_i64(wanted, p.n_kv_head));
    bands = ceil_div(p.n_kv_head, heads);
  }
  // Per row: unnormalised output, then its maximum and its sum.
  HEDDLE_INLINE int64_t row_floats() const { return padded_dim + kLanes; }
  HEDDLE_INLINE int64_t partial_floats() const { return heads * rows * row_floats(); }
};

inline bool decodes_by_panels(const AttentionProblem& p) {
  return p.q_len >= kLanes;
}

// The forward problem that batch row b poses.
inline AttentionProblem forward_problem_of_row(const AttentionProblem& p, int64_t kv_len) {
  AttentionProblem row = p;
  row.k_len = kv_len;
  row.q_pos0 = kv_len - p.q_len;
  row.k_pos0 = 0;
  return row;
}

inline Launch plan_decode(const AttentionProblem& p) {
  if (decodes_by_panels(p)) return plan_forward(p);
  const DecodePlan plan(p);
  Launch launch;
  const int64_t tasks = p.batch * plan.bands;
  launch.tasks[0] = tasks * plan.splits;
  launch.worker_bytes =
      static_cast<size_t>(Carver::bytes(plan.heads * plan.rows * plan.padded_dim) +
                          Carver::bytes(plan.partial_floats()) +
                          Carver::bytes(plan.heads * plan.rows * kDecodeKeys) +
                          Carver::bytes(plan.heads * plan.rows));
  if (plan.splits > 1) {
    launch.phases = 2;
    launch.tasks[1] = tasks;
    launch.shared_bytes =
        static_cast<size_t>(tasks * plan.splits * Carver::bytes(plan.partial_floats()));
  }
  return launch;
}

inline float exp2_of(float x) {
  return exp2(splat(x))[0];
}

class DecodeTask {
 public:
  DecodeTask(const AttentionProblem& p, const DecodeArgs& args, int64_t task)
      : p_(p), args_(args), plan_(p) {
    batch_ = task / plan_.bands;
    first_head_ = task % plan_.bands * plan_.heads;
    heads_ = min_i64(plan_.heads, p.n_kv_head - first_head_);
    const int64_t kv_len = args.kv_len[batch_];
    mask_ = {p.q_len, kv_len, kv_len - p.q_len, 0, p.window_left, p.causal};
  }

  void attend_split(int64_t split, void* worker, float* partial) {
    Carver carve(worker);
    q_ = carve.floats(plan_.heads * plan_.rows * plan_.padded_dim);
    float* own = carve.floats(plan_.partial_floats());
    p_of_chunk_ = carve.floats(plan_.heads * plan_.rows * kDecodeKeys);
    shrink_ = carve.floats(plan_.heads * plan_.rows);
    rows_ = partial ? partial : own;
    begin_rows();
    const Range all = keys_of_queries(mask_, {0, p_.q_len});
    const int64_t step = round_up(ceil_div(all.size(), plan_.splits), kLanes);
    const Range keys = intersect(all, {all.begin + split * step, all.begin + (split + 1) * step});
    for (int64_t j = keys.begin; j < keys.end; j += kDecodeKeys) {
      attend({j, min_i64(j + kDecodeKeys, keys.end)});
    }
    if (!partial) {
      for (int64_t r = 0; r < rows(); ++r) write_row(r, row(rows_, r));
    }
  }

  // Merges the splits of all rows; the first partial receives the sum.
  void merge(float* partials, int64_t stride) {
    for (int64_t r = 0; r < rows(); ++r) {
      float* total = row(partials, r);
      float top = -__builtin_inff();
      for (int64_t s = 0; s < plan_.splits; ++s) {
        const float other = row(partials + s * stride, r)[plan_.padded_dim];
        if (!(other <= top)) top = other;
      }
      const float zero = top == -__builtin_inff() ? 0.0f : top;
      for (int64_t s = 0; s < plan_.splits; ++s) {
        const float* part = row(partials + s * stride, r);
        const Vec weight = splat(exp2_of(part[plan_.padded_dim] - zero));
        const float sum = part[plan_.padded_dim + 1] * weight[0];
        total[plan_.padded_dim + 1] = s == 0 ? sum : total[plan_.padded_dim + 1] + sum;
        for (int64_t d = 0; d < plan_.padded_dim; d += kLanes) {
          const Vec x = load(part + d) * weight;
          store(total + d, s == 0 ? x : load(total + d) + x);
        }
      }
      total[plan_.padded_dim] = top;
      write_row(r, total);
    }
  }

 private:
  // Row r: token r % q_len of the task's query head r / q_len.
  int64_t rows() const { return heads_ * plan_.rows; }
  int64_t query_head(int64_t r) const { return first_head_ * plan_.group + r / p_.q_len; }
  float* row(float* rows, int64_t r) const { return rows + r * plan_.row_floats(); }
  int64_t query_row(const TensorStrides& s, int64_t r) const {
    return batch_ * s.batch + (r % p_.q_len) * s.token + query_head(r) * s.head;
  }
  const float* keys_of_row(const float* base, const TensorStrides& s, int64_t r) const {
    return base + batch_ * s.batch + (first_head_ + r / plan_.rows) * s.head;
  }

  void begin_rows() {
    for (int64_t r = 0; r < rows(); ++r) {
      const float* q = args_.q + query_row(p_.q, r);
      for (int64_t d = 0; d < plan_.padded_dim; ++d) {
        q_[r * plan_.padded_dim + d] = d < plan_.dim ? q[d] * p_.scale * kLog2E : 0.0f;
      }
      float* out = row(rows_, r);
      for (int64_t d = 0; d < plan_.row_floats(); ++d) out[d] = 0.0f;
      out[plan_.padded_dim] = -__builtin_inff();
    }
  }

  // Adds the keys of one chunk to all rows. A row's scores, their exponentials and its output wait
  // for each other; beside another row's they hide behind the stream of K and V.
  void attend(Range chunk) {
    const auto each_row = [&](auto&& body) __attribute__((always_inline)) {
      for (int64_t r = 0; r < rows(); ++r) {
        const Range seen = intersect(chunk, keys_of_query(mask_, r % p_.q_len));
        if (!seen.empty()) body(r, seen, p_of_chunk_ + r * kDecodeKeys);
      }
    };
    each_row([&](int64_t r, Range seen, float* p) { score(r, seen, p); });
    each_row([&](int64_t r, Range seen, float* p) { exponentiate(r, seen.size(), p); });
    each_row([&](int64_t r, Range seen, float* p) {
      const float* v = keys_of_row(args_.v, p_.v, r) + seen.begin * p_.v.token;
      accumulate(v, seen.size(), p, shrink_[r], row(rows_, r));
    });
  }

  // Scores of row r to exponentials of their distance from the row's maximum so far.
  void exponentiate(int64_t r, int64_t keys, float* p) {
    float* out = row(rows_, r);
    const int64_t padded = round_up(keys, kLanes);
    for (int64_t j = keys; j < padded; ++j) p[j] = -__builtin_inff();

    Vec tops = load(p);
    for (int64_t j = kLanes; j < padded; j += kLanes) tops = max(load(p + j), tops);
    float& top = out[plan_.padded_dim];
    const float old_top = top;
    for (int lane = 0; lane < kLanes; ++lane) top = tops[lane] > top ? tops[lane] : top;
    const float zero = top == -__builtin_inff() ? 0.0f : top;

    Vec sums = {};
    for (int64_t j = 0; j < padded; j += kLanes) {
      const Vec x = exp2(load(p + j) - splat(zero));
      store(p + j, x);
      sums += x;
    }
    shrink_[r] = exp2_of(old_top - zero);
    float& sum = out[plan_.padded_dim + 1];
    sum = sum * shrink_[r] + horizontal_sum(sums);
  }

  // p[j] = q . k[j], four keys at a time.
  void score(int64_t r, Range keys, float* p) const {
    const float* q = q_ + r * plan_.padded_dim;
    const float* base = keys_of_row(args_.k, p_.k, r);
    for (int64_t j = keys.begin; j < keys.end; j += 4) {
      const float* k[4];
      for (int64_t n = 0; n < 4; ++n) k[n] = base + min_i64(j + n, keys.end - 1) * p_.k.token;
      Vec sum[4] = {};
      int64_t d = 0;
      for (; d + kLanes <= plan_.dim; d += kLanes) {
        const Vec x = load(q + d);
        HEDDLE_UNROLL
        for (int n = 0; n < 4; ++n) sum[n] += x * load(k[n] + d);
      }
      Quad scores = horizontal_sums(sum[0], sum[1], sum[2], sum[3]);
      for (; d < plan_.dim; ++d) {
        scores += Quad{k[0][d], k[1][d], k[2][d], k[3][d]} * (q[d] - Quad{});
      }
      store_quad(p + (j - keys.begin), scores);  // kDecodeKeys is a multiple of 4
    }
  }

  // out = shrink * out + sum_j p[j] v[j]
  void accumulate(const float* v, int64_t keys, const float* p, float shrink, float* out) const {
    const auto strip = [&]<int NV>(int64_t d) __attribute__((always_inline)) {
      Vec scale[NV];
      HEDDLE_UNROLL
      for (int n = 0; n < NV; ++n) scale[n] = splat(shrink);
      Tile<1, NV> tile;
      tile.load_scaled(out + d, 0, scale);
      tile.rows_x_panel(p, 0, v + d, p_.v.token, keys);
      tile.store_to(out + d, 0);
    };
    int64_t d = 0;
    for (; d + 8 * kLanes <= plan_.dim; d += 8 * kLanes) strip.template operator()<8>(d);
    for (; d + 4 * kLanes <= plan_.dim; d += 4 * kLanes) strip.template operator()<4>(d);
    for (; d + kLanes <= plan_.dim; d += kLanes) strip.template operator()<1>(d);
    for (; d < plan_.dim; ++d) {
      float x = out[d] * shrink;
      for (int64_t j = 0; j < keys; ++j) x += p[j] * v[j * p_.v.token + d];
      out[d] = x;
    }
  }

  void write_row(int64_t r, const float* state) const {
    const float top = state[plan_.padded_dim], sum = state[plan_.padded_dim + 1];
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    float* out = args_.out + query_row(p_.out, r);
    for (int64_t d = 0; d < plan_.dim; ++d) out[d] = state[d] * inverse;
    if (!args_.lse) return;
    args_.lse[batch_ * p_.lse_stride_batch + query_head(r) * p_.lse_stride_head + r % p_.q_len] =
        sum == 0.0f ? -__builtin_inff() : top * kLn2 + __builtin_logf(sum);
  }

  const AttentionProblem& p_;
  const DecodeArgs& args_;
  const DecodePlan plan_;
  int64_t batch_, first_head_, heads_;  // kv heads
  AttentionMask mask_;
  float* q_ = nullptr;           // (rows(), padded D), scaled for base-2 scores
  float* rows_ = nullptr;        // (rows(), row_floats): output, maximum, sum
  float* p_of_chunk_ = nullptr;  // (rows(), kDecodeKeys)
  float* shrink_ = nullptr;      // (rows()): what the chunk's maximum makes of the output so far
};

inline void run_decode(const AttentionProblem& p, const DecodeArgs& args,
                       const TaskContext& context) {
  if (decodes_by_panels(p)) {
    const int64_t b = context.task % (p.batch * p.n_kv_head) / p.n_kv_head;
    const AttentionProblem row = forward_problem_of_row(p, args.kv_len[b]);
    run_forward(row, {args.q, args.k, args.v, args.out, args.lse}, context);
    return;
  }
  const DecodePlan plan(p);
  const int64_t partial_floats = Carver::bytes(plan.partial_floats()) / 4;
  float* shared = static_cast<float*>(context.shared);
  if (context.phase == 1) {
    DecodeTask(p, args, context.task)
        .merge(shared + context.task * plan.splits * partial_floats, partial_floats);
    return;
  }
  const int64_t task = context.task / plan.splits, split = context.task % plan.splits;
  float* partial = plan.splits > 1 ? shared + context.task * partial_floats : nullptr;
  DecodeTask(p, args, task).attend_split(split, context.worker, partial);
}

}  // namespace heddle::kernels::cpu::HEDDLE_ISA
