#include "plugins/conformance/semantics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "plugins/conformance/compare.h"

namespace heddle::conformance {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One query row of one head: its keys' scores and probabilities.
class Model {
 public:
  Model(const Case& c, const Arrays& in, const Semantics& s)
      : c_(c),
        in_(in),
        s_(s),
        q_(shape_of(c, "q")),
        k_(shape_of(c, "k")),
        scale_(s.scale ? s.scale(c) : scale_of(c)) {}

  Exact run() {
    const bool backward = c_.op == HEDDLE_OP_BACKWARD;
    if (backward) {
      e_.dq.assign(in_.q.size(), 0.0);
      e_.dk.assign(in_.k.size(), 0.0);
      e_.dv.assign(in_.k.size(), 0.0);
    } else {
      e_.out.assign(in_.q.size(), 0.0);
      e_.lse.assign(static_cast<size_t>(lse_elements(c_)), 0.0);
    }
    for (int64_t b = 0; b < c_.batch; ++b) {
      for (int64_t h = 0; h < c_.n_head; ++h) {
        for (int64_t i = 0; i < c_.q_len; ++i) {
          score_row(b, h, i);
          backward ? differentiate(b, h, i) : attend(b, h, i);
        }
      }
    }
    if (s_.swap_dk_dv) std::swap(e_.dk, e_.dv);
    return std::move(e_);
  }

 private:
  int64_t key_head(int64_t h) const { return s_.kv_head ? s_.kv_head(c_, h) : h / group_of(c_); }
  size_t key_at(int64_t b, int64_t h, int64_t j, int64_t d) const {
    return k_.at(s_.first_batch_row ? 0 : b, key_head(h), j, d);
  }

  void score_row(int64_t b, int64_t h, int64_t i) {
    const bool by_header = !s_.visible;
    p_.assign(static_cast<size_t>(c_.k_len), 0.0);
    seen_.assign(p_.size(), false);
    top_ = -kInfinity;
    for (int64_t j = 0; j < c_.k_len; ++j) {
      const auto n = static_cast<size_t>(j);
      const bool sees = by_header ? visible_by_header(c_, b, i, j) : s_.visible(c_, b, i, j);
      if (!sees && !(s_.hidden_as_zero && j < keys_of(c_, b))) continue;
      double dot = 0.0;
      for (int64_t d = 0; sees && d < c_.head_dim; ++d) {
        dot += static_cast<double>(in_.q[q_.at(b, h, i, d)]) * in_.k[key_at(b, h, j, d)];
      }
      p_[n] = scale_ * dot;
      seen_[n] = true;
      top_ = std::max(top_, p_[n]);
    }
    sum_ = 0.0;
    for (size_t n = 0; n < p_.size(); ++n) {
      p_[n] = seen_[n] ? std::exp(p_[n] - top_) : 0.0;
      sum_ += p_[n];
    }
    if (sum_ == 0.0 && s_.uniform_when_empty) {
      std::fill(p_.begin(), p_.begin() + keys_of(c_, b), 1.0);
      sum_ = static_cast<double>(keys_of(c_, b));
      top_ = 0.0;
    }
    const double right = top_ + std::log(sum_);
    lse_ = sum_ == 0.0 ? s_.empty_lse : s_.lse ? s_.lse(right, top_) : right;
    for (double& p : p_) p /= sum_ > 0.0 && s_.normalised ? sum_ : 1.0;
  }

  void attend(int64_t b, int64_t h, int64_t i) {
    e_.lse[shape_of(c_, "lse").at(b, h, i, 0)] = lse_;
    for (int64_t j = 0; j < c_.k_len; ++j) {
      const double p = p_[static_cast<size_t>(j)];
      if (p == 0.0) continue;
      for (int64_t d = 0; d < c_.head_dim; ++d) {
        e_.out[q_.at(b, h, i, d)] += p * in_.v[key_at(b, h, j, d)];
      }
    }
  }

  // Weight of query head h in the sums of its group.
  double group_weight(int64_t h) const {
    const int64_t group = group_of(c_), place = h % group;
    if (s_.group == GroupSum::kFirst) return place == 0 ? 1.0 : 0.0;
    if (s_.group == GroupSum::kLast) return place == group - 1 ? 1.0 : 0.0;
    return s_.group == GroupSum::kMean ? 1.0 / static_cast<double>(group) : 1.0;
  }

  void differentiate(int64_t b, int64_t h, int64_t i) {
    std::vector<double> dp(p_.size(), 0.0);
    double delta = 0.0;
    for (int64_t j = 0; j < c_.k_len; ++j) {
      const auto n = static_cast<size_t>(j);
      if (p_[n] == 0.0) continue;
      for (int64_t d = 0; d < c_.head_dim; ++d) {
        dp[n] += static_cast<double>(in_.dout[q_.at(b, h, i, d)]) * in_.v[key_at(b, h, j, d)];
      }
      delta += p_[n] * dp[n];
    }
    const double weight =
        i >= s_.dk_skips_rows[0] && i < s_.dk_skips_rows[1] ? 0.0 : group_weight(h);
    for (int64_t j = 0; j < c_.k_len; ++j) {
      const auto n = static_cast<size_t>(j);
      if (p_[n] == 0.0) continue;
      const double ds = p_[n] * (dp[n] - (s_.delta ? delta : 0.0));
      const bool skip = j >= s_.dq_skips_keys[0] && j < s_.dq_skips_keys[1];
      for (int64_t d = 0; d < c_.head_dim; ++d) {
        const size_t q = q_.at(b, h, i, d), k = key_at(b, h, j, d);
        if (!skip) e_.dq[q] += s_.dq_factor * scale_of(c_) * ds * in_.k[k];
        e_.dk[k] += weight * s_.dk_factor * scale_of(c_) * ds * in_.q[q];
        e_.dv[k] += weight * p_[n] * in_.dout[q];
      }
    }
  }

  const Case& c_;
  const Arrays& in_;
  const Semantics& s_;
  Shape q_, k_;
  double scale_;
  std::vector<double> p_;
  std::vector<bool> seen_;
  double top_ = 0.0, sum_ = 0.0, lse_ = 0.0;
  Exact e_;
};

// qp - kp of the header.
int64_t distance(const Case& c, int64_t b, int64_t i, int64_t j) {
  return query_position(c, b, i) - j - (c.op == HEDDLE_OP_DECODE ? 0 : c.k_pos0);
}

bool by_distance(const Case& c, int64_t behind, int64_t window) {
  return (!c.causal || behind >= 0) && (window < 0 || behind <= window);
}

class MistakeList {
 public:
  explicit MistakeList(const Case& c) : c_(c) {}

  Semantics& add(std::string words) {
    list.emplace_back();
    list.back().words = std::move(words);
    return list.back();
  }
  // A mask rule over the distance qp - kp of existing keys.
  template <class F>
  void mask(std::string words, F rule) {
    add(std::move(words)).visible = [rule](const Case& c, int64_t b, int64_t i, int64_t j) {
      return j < keys_of(c, b) && rule(c, b, i, j, distance(c, b, i, j));
    };
  }

  void windows();
  void tiles();
  void alignment();
  void decode();
  void heads();
  void scales();
  void sums();
  void gradients();
  void blocks();

  std::vector<Semantics> list;

 private:
  const Case& c_;
};

using I = int64_t;

void MistakeList::windows() {
  if (c_.window_left >= 0) {
    mask(
        "window_left + 1: the window shows one earlier key too many (window_left counts earlier "
        "keys, the row itself comes on top)",
        [](const Case& c, I, I, I, I x) { return by_distance(c, x, c.window_left + 1); });
    mask(
        "window_left - 1: the window shows one key too few (window_left earlier keys AND the row "
        "itself; counted as a length?)",
        [](const Case& c, I, I, I, I x) {
          return c.window_left > 0 ? by_distance(c, x, c.window_left - 1) : false;
        });
    mask("the window is ignored",
         [](const Case& c, I, I, I, I x) { return by_distance(c, x, -1); });
    mask("the window counts from the query's index in this call instead of its position",
         [](const Case& c, I, I i, I j, I x) {
           return by_distance(c, x, -1) && i - j <= c.window_left;
         });
    mask("the window counts from the last key for every row (from the other end)",
         [](const Case& c, I b, I, I j, I x) {
           return by_distance(c, x, -1) && keys_of(c, b) - 1 - j <= c.window_left;
         });
    mask("the first window_left + 1 keys are taken instead of the last",
         [](const Case& c, I, I, I j, I x) { return by_distance(c, x, -1) && j <= c.window_left; });
    if (!c_.causal) {
      mask("the window hides later keys too, though the mask is not causal",
           [](const Case& c, I, I, I, I x) { return std::abs(x) <= c.window_left; });
    }
  }
  if (c_.causal) {
    mask("the causal mask is not applied",
         [](const Case& c, I, I, I, I x) { return c.window_left < 0 || x <= c.window_left; });
    mask("the row does not see itself (kp < qp instead of kp <= qp)",
         [](const Case& c, I, I, I, I x) { return x > 0 && by_distance(c, x, c.window_left); });
    mask("the row sees one later key (kp <= qp + 1)", [](const Case& c, I, I, I, I x) {
      return x >= -1 && (c.window_left < 0 || x <= c.window_left);
    });
  } else {
    mask("a causal mask is applied although the problem has none", [](const Case& c, I, I, I, I x) {
      return x >= 0 && (c.window_left < 0 || x <= c.window_left);
    });
  }
}

void MistakeList::tiles() {
  for (const I tile : {8, 16, 32, 64, 128}) {
    if (c_.k_len < tile) break;
    mask("keys behind the last whole tile of " + std::to_string(tile) +
             " are missing: the incomplete tile is dropped",
         [tile](const Case& c, I b, I, I j, I x) {
           const I whole = keys_of(c, b) / tile * tile;
           return (j < whole || whole == 0) && by_distance(c, x, c.window_left);
         });
  }
}

void MistakeList::alignment() {
  if (c_.op == HEDDLE_OP_DECODE) return;
  mask("positions are ignored: the mask is aligned top-left (row i sees keys up to i)",
       [](const Case& c, I, I i, I j, I) { return by_distance(c, i - j, c.window_left); });
  mask("the mask is aligned bottom-right whatever q_pos0 and k_pos0 say",
       [](const Case& c, I, I i, I j, I) {
         return by_distance(c, i + c.k_len - c.q_len - j, c.window_left);
       });
  mask("k_pos0 is ignored",
       [](const Case& c, I, I, I, I x) { return by_distance(c, x + c.k_pos0, c.window_left); });
  mask("q_pos0 is ignored",
       [](const Case& c, I, I, I, I x) { return by_distance(c, x - c.q_pos0, c.window_left); });
}

void MistakeList::decode() {
  if (c_.op != HEDDLE_OP_DECODE) return;
  mask("kv_len is taken as the length before the new tokens (it counts them)",
       [](const Case& c, I, I, I, I x) { return by_distance(c, x + c.q_len, c.window_left); });
  mask("the newest key is missing (kv_len - 1)", [](const Case& c, I b, I, I j, I x) {
    return j < keys_of(c, b) - 1 && by_distance(c, x, c.window_left);
  });
  mask("the length is one too short (kv_len - 1)", [](const Case& c, I b, I, I j, I x) {
    return j < keys_of(c, b) - 1 && by_distance(c, x - 1, c.window_left);
  });
  mask("all new tokens see all kv_len keys: no causal order among them",
       [](const Case& c, I, I, I, I x) { return c.window_left < 0 || x <= c.window_left; });
  mask("the mask is aligned top-left: query i sees keys up to i",
       [](const Case& c, I, I i, I j, I) { return by_distance(c, i - j, c.window_left); });
  add("kv_len[0] is used for every batch row").visible = [](const Case& c, I, I i, I j) {
    return j < c.kv_len[0] && by_distance(c, c.kv_len[0] - c.q_len + i - j, c.window_left);
  };
  add("the capacity of the cache is used instead of kv_len").visible = [](const Case& c, I, I i,
                                                                          I j) {
    return by_distance(c, c.k_len - c.q_len + i - j, c.window_left);
  };
  add("the length is one too long (kv_len + 1)").visible = [](const Case& c, I b, I i, I j) {
    return j <= keys_of(c, b) && by_distance(c, distance(c, b, i, j) + 1, c.window_left);
  };
}

void MistakeList::heads() {
  if (c_.batch > 1)
    add("keys and values of batch row 0 are used for every row").first_batch_row = true;
  if (c_.n_kv_head == 1) return;
  add("query head h reads kv head h mod n_kv_head instead of h / (n_head / n_kv_head)").kv_head =
      [](const Case& c, I h) { return h % c.n_kv_head; };
  add("every query head reads kv head 0").kv_head = [](const Case&, I) { return I{0}; };
  add("query head h reads kv head h / n_kv_head instead of h / (n_head / n_kv_head)").kv_head =
      [](const Case& c, I h) { return std::min(h / c.n_kv_head, c.n_kv_head - 1); };
  add("kv heads are read in reverse order").kv_head = [](const Case& c, I h) {
    return c.n_kv_head - 1 - h / group_of(c);
  };
}

void MistakeList::scales() {
  add("the scale is missing: scores are q.k").scale = [](const Case&) { return 1.0; };
  add("the scale is applied twice").scale = [](const Case& c) {
    return static_cast<double>(scale_of(c)) * scale_of(c);
  };
  add("the square root of the scale is applied (to q or to k only, where both were meant)").scale =
      [](const Case& c) { return std::sqrt(static_cast<double>(scale_of(c))); };
  add("problem.scale is ignored: 1 / sqrt(head_dim) is used").scale = [](const Case& c) {
    return 1.0 / std::sqrt(static_cast<double>(c.head_dim));
  };
  add("the scale is 1 / head_dim").scale = [](const Case& c) {
    return 1.0 / static_cast<double>(c.head_dim);
  };
  add("exp2 is used without log2(e) in the scale").scale = [](const Case& c) {
    return scale_of(c) * std::log(2.0);
  };
}

void MistakeList::sums() {
  add("lse is in base 2: off by the factor 1 / ln 2").lse = [](double lse, double) {
    return lse / std::log(2.0);
  };
  add("lse lacks the row's maximum: it is ln of the sum of exp(score - max)").lse =
      [](double lse, double top) { return lse - top; };
  add("lse is the row's maximum alone").lse = [](double, double top) { return top; };
  add("lse is the sum of exponentials, without ln").lse = [](double lse, double) {
    return std::exp(lse);
  };
  add("lse has the wrong sign").lse = [](double lse, double) { return -lse; };
  add("lse is 0 for a row that sees no key, expected -inf").empty_lse = 0.0;
  add("lse is +inf for a row that sees no key, expected -inf").empty_lse = kInfinity;
  Semantics& finite =
      add("a row that sees no key takes the mean of all values: the mask is a "
          "finite large negative number, not -inf");
  finite.uniform_when_empty = true;
  finite.any_lse = true;
  add("hidden keys take part with a score of 0: masked after the product, not before the maximum")
      .hidden_as_zero = true;
  add("out is not divided by the sum of exponentials").normalised = false;
}

void MistakeList::gradients() {
  if (c_.op != HEDDLE_OP_BACKWARD) return;
  const double scale = scale_of(c_);
  add("dq lacks the scale").dq_factor = 1.0 / scale;
  add("dk lacks the scale").dk_factor = 1.0 / scale;
  Semantics& both = add("dq and dk lack the scale");
  both.dq_factor = both.dk_factor = 1.0 / scale;
  add("dq has the scale twice").dq_factor = scale;
  add("dk has the scale twice").dk_factor = scale;
  add("delta (the sum of out * dout) is not subtracted").delta = false;
  add("dk and dv are swapped").swap_dk_dv = true;
  if (group_of(c_) == 1) return;
  add("dk and dv are not summed over the query heads of a group: the last head's remain").group =
      GroupSum::kLast;
  add("dk and dv are not summed over the query heads of a group: only the first head's are there")
      .group = GroupSum::kFirst;
  add("dk and dv are averaged over the query heads of a group instead of summed").group =
      GroupSum::kMean;
}

void MistakeList::blocks() {
  if (c_.op != HEDDLE_OP_BACKWARD) return;
  const auto name = [](I begin, I end) {
    return std::to_string(begin) + ".." + std::to_string(end - 1);
  };
  for (const I size : {1, 4, 8, 16, 32, 64, 128}) {
    for (I begin = 0; begin < std::min<I>(c_.k_len, 4 * size); begin += size) {
      const I end = std::min(begin + size, c_.k_len);
      Semantics& s = add("dq misses the keys " + name(begin, end) + ": a block is skipped");
      s.dq_skips_keys[0] = begin;
      s.dq_skips_keys[1] = end;
    }
    for (I begin = 0; begin < std::min<I>(c_.q_len, 4 * size); begin += size) {
      const I end = std::min(begin + size, c_.q_len);
      Semantics& s = add("dk and dv miss the queries " + name(begin, end) + ": a block is skipped");
      s.dk_skips_rows[0] = begin;
      s.dk_skips_rows[1] = end;
    }
  }
}

}  // namespace

bool visible_by_header(const Case& c, int64_t b, int64_t i, int64_t j) {
  return j < keys_of(c, b) && by_distance(c, distance(c, b, i, j), c.window_left);
}

Exact model_results(const Case& c, const Arrays& inputs, const Semantics& semantics) {
  return Model(c, inputs, semantics).run();
}

std::vector<Semantics> known_mistakes(const Case& c) {
  MistakeList mistakes(c);
  mistakes.windows();
  mistakes.alignment();
  mistakes.tiles();
  mistakes.decode();
  mistakes.heads();
  mistakes.scales();
  mistakes.sums();
  mistakes.gradients();
  mistakes.blocks();
  return std::move(mistakes.list);
}

}  // namespace heddle::conformance
