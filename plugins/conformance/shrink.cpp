#include "plugins/conformance/shrink.h"

#include <algorithm>

namespace heddle::conformance {
namespace {

bool bottom_right(const Case& c) {
  return c.op != HEDDLE_OP_DECODE && c.q_pos0 - c.k_pos0 == c.k_len - c.q_len;
}

Case with_lengths(const Case& c, int64_t q_len, int64_t k_len) {
  Case r = c;
  r.q_len = q_len;
  r.k_len = k_len;
  if (bottom_right(c)) r.q_pos0 = r.k_pos0 + k_len - q_len;
  for (int32_t& n : r.kv_len)
    n = n == c.k_len ? static_cast<int32_t>(k_len)
                     : static_cast<int32_t>(std::min<int64_t>(n, k_len));
  if (r.chunk > 0) r.chunk = std::min(r.chunk, std::max<int64_t>(q_len, 1));
  return r;
}

class Steps {
 public:
  explicit Steps(const Case& c) : c_(c) {}

  void add(const Case& r) {
    if (!(r == c_)) steps.push_back(r);
  }
  template <class Change>
  void change(Change&& f) {
    Case r = c_;
    f(r);
    add(r);
  }

  void lengths(int64_t (*smaller)(int64_t)) {
    const int64_t q = smaller(c_.q_len), k = smaller(c_.k_len);
    add(with_lengths(c_, q, k));
    add(with_lengths(c_, c_.q_len, k));
    add(with_lengths(c_, q, c_.k_len));
  }
  void kv_lengths(int64_t (*smaller)(int64_t)) {
    change([&](Case& r) {
      for (int32_t& n : r.kv_len) n = static_cast<int32_t>(smaller(n));
    });
    for (size_t b = 0; b < c_.kv_len.size(); ++b) {
      change([&](Case& r) { r.kv_len[b] = static_cast<int32_t>(smaller(c_.kv_len[b])); });
    }
  }
  void batch_rows() {
    if (c_.batch <= 1) return;
    change([&](Case& r) {
      r.batch = 1;
      if (!r.kv_len.empty()) r.kv_len.resize(1);
    });
    for (const bool front : {false, true}) {
      change([&](Case& r) {
        --r.batch;
        if (!r.kv_len.empty()) r.kv_len.erase(front ? r.kv_len.begin() : r.kv_len.end() - 1);
      });
    }
  }
  void heads() {
    const int64_t group = group_of(c_);
    change([&](Case& r) { r.n_head = r.n_kv_head = 1; });
    for (const int64_t kv : {c_.n_kv_head / 2, c_.n_kv_head - 1}) {
      if (kv < 1) continue;
      change([&](Case& r) { r.n_kv_head = kv, r.n_head = kv * group; });
    }
    for (const int64_t g : {int64_t{1}, group / 2, group - 1}) {
      if (g >= 1) change([&](Case& r) { r.n_head = r.n_kv_head * g; });
    }
  }

  std::vector<Case> steps;

 private:
  const Case& c_;
};

int64_t half(int64_t n) {
  return n > 1 ? n / 2 : n;
}
int64_t one_less(int64_t n) {
  return n > 1 ? n - 1 : n;
}

}  // namespace

std::vector<Case> smaller_cases(const Case& c) {
  Steps s(c);
  s.batch_rows();
  s.lengths(half);
  s.heads();
  s.change([](Case& r) { r.head_dim = 1; });
  s.change([](Case& r) { r.head_dim = half(r.head_dim); });
  s.kv_lengths(half);
  s.change([](Case& r) { r.layout = Layout::kContiguous; });
  s.change([](Case& r) { r.order = Order::kInOrder; });
  s.change([](Case& r) { r.workers = 1; });
  s.change([](Case& r) { r.edge = Edge::kEnd; });
  s.change([](Case& r) { r.q_pos0 -= r.k_pos0, r.k_pos0 = 0; });
  s.change([](Case& r) { r.q_pos0 = half(r.q_pos0); });
  s.change([](Case& r) { r.window_left = half(r.window_left); });
  s.change([](Case& r) { r.window_left -= r.window_left > 0; });
  s.change([](Case& r) { r.window_left = -1; });
  s.lengths(one_less);
  s.kv_lengths(one_less);
  s.change([](Case& r) { r.head_dim = one_less(r.head_dim); });
  s.change([](Case& r) { r.chunk = half(r.chunk); });
  return std::move(s.steps);
}

Case shrink(const Case& c, const std::function<bool(const Case&)>& fails, int budget) {
  Case smallest = c;
  for (bool progress = true; progress;) {
    progress = false;
    for (const Case& candidate : smaller_cases(smallest)) {
      if (budget-- <= 0) return smallest;
      if (!fails(candidate)) continue;
      smallest = candidate;
      progress = true;
      break;
    }
  }
  return smallest;
}

}  // namespace heddle::conformance
