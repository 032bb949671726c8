// Decoding with a cache.
#include <algorithm>
#include <limits>

#include "plugins/conformance/grids.h"
#include "plugins/conformance/rules.h"

namespace heddle::conformance {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Elements [begin, end) of every batch row's tokens set to a value.
void set_tokens(const Case& c, std::vector<float>& keys, int64_t b, int64_t begin, int64_t end,
                float value) {
  const int64_t row = c.n_kv_head * c.head_dim;
  const auto at = [&](int64_t token) { return keys.begin() + (b * c.k_len + token) * row; };
  if (begin < end) std::fill(at(begin), at(end), value);
}

Judgement judge_inputs(Session& session, const Case& c, const Arrays& clean, const Arrays& dirty,
                       const char* symptom, const std::string& words) {
  const CallResult result = call_plugin(session, c, dirty);
  if (!result.ran()) return Judgement::of(result);
  const Exact want = exact_results(c, clean);
  const auto difference = compare_results(c, result.got, want, score_size(c, clean));
  if (!difference) return Judgement::passed();
  return Judgement::failed(symptom, describe(*difference), {words, true});
}

Judgement judge_tail(Session& session, const Case& c, bool) {
  const Arrays clean = make_inputs(c);  // NaN behind kv_len, k and v
  for (const bool keys : {true, false}) {
    for (const float value : {kNan, 3.0f, 1e30f}) {
      Arrays dirty = clean;
      for (int64_t b = 0; b < c.batch; ++b) {
        set_tokens(c, keys ? dirty.k : dirty.v, b, keys_of(c, b), c.k_len, value);
        set_tokens(c, keys ? dirty.v : dirty.k, b, keys_of(c, b), c.k_len, 0.0f);
      }
      const char* name = keys ? "k" : "v";
      const Judgement judgement =
          judge_inputs(session, c, clean, dirty, "decode: the cache behind kv_len reaches out",
                       std::string("rows of ") + name +
                           " at kv_len and behind are read (0 * NaN is NaN): mask or skip them");
      if (judgement.kind != Judgement::kPassed) return judgement;
    }
  }
  return Judgement::passed();
}

Judgement judge_behind(Session& session, const Case& c, bool) {
  const Arrays clean = make_inputs(c);
  Arrays dirty = clean;
  for (int64_t b = 0; b < c.batch; ++b) {
    const int64_t first = std::min(keys_seen(c, b, 0).first, keys_of(c, b));
    set_tokens(c, dirty.k, b, 0, first, kNan);
    set_tokens(c, dirty.v, b, 0, first, kNan);
  }
  return judge_inputs(session, c, clean, dirty,
                      "decode: keys older than the window reach out of a single-token step",
                      "NaN in cache rows left of the window comes through: start at the first "
                      "visible key, not at its tile");
}

// c.q_len tokens through the cache, c.chunk at a time, against one forward over all of them.
Judgement judge_chunks(Session& session, const Case& c, bool explain) {
  if (c.chunk < 1 || c.q_len > c.k_len) return Judgement::passed();  // made too small
  Case whole = c;
  whole.op = HEDDLE_OP_FORWARD;
  whole.k_len = whole.q_len;
  whole.kv_len.clear();
  const Arrays all = make_inputs(whole);
  const Exact want = exact_results(whole, all);
  const int64_t q_row = c.n_head * c.head_dim, k_row = c.n_kv_head * c.head_dim;
  for (int64_t done = 0; done < c.q_len; done += c.chunk) {
    Case step = c;
    step.q_len = std::min(c.chunk, c.q_len - done);
    step.chunk = 0;
    step.kv_len.assign(static_cast<size_t>(c.batch), static_cast<int32_t>(done + step.q_len));
    Arrays in;
    in.k.assign(static_cast<size_t>(key_elements(step)), kNan);
    in.v = in.k;
    Exact expected;
    expected.lse.resize(static_cast<size_t>(lse_elements(step)));
    for (int64_t b = 0; b < c.batch; ++b) {
      const auto from = (b * c.q_len + done) * q_row, to = from + step.q_len * q_row;
      in.q.insert(in.q.end(), all.q.begin() + from, all.q.begin() + to);
      expected.out.insert(expected.out.end(), want.out.begin() + from, want.out.begin() + to);
      const int64_t keys = (done + step.q_len) * k_row, at = b * c.q_len * k_row;
      std::copy_n(all.k.begin() + at, keys, in.k.begin() + b * c.k_len * k_row);
      std::copy_n(all.v.begin() + at, keys, in.v.begin() + b * c.k_len * k_row);
      for (int64_t h = 0; h < c.n_head; ++h) {
        std::copy_n(want.lse.begin() + (b * c.n_head + h) * c.q_len + done, step.q_len,
                    expected.lse.begin() + (b * c.n_head + h) * step.q_len);
      }
    }
    const CallResult result = call_plugin(session, step, in);
    if (!result.ran()) return Judgement::of(result);
    const auto difference = compare_results(step, result.got, expected, score_size(step, in));
    if (!difference) continue;
    return Judgement::failed(
        "decode: tokens " + std::to_string(done) + ".." + std::to_string(done + step.q_len - 1) +
            " in a chunk of " + std::to_string(step.q_len) + " differ from one forward over all",
        describe(*difference),
        explain ? diagnose(step, in, result.got, expected, *difference) : Diagnosis{});
  }
  return Judgement::passed();
}

}  // namespace

void check_lengths(Check& check) {
  std::vector<Case> cases;
  for (const int64_t w : {-1, 6, 0}) {
    for (const int64_t q : {1, 2, 5}) {
      const auto n = static_cast<int32_t>(q);
      cases.push_back(make_decode(q, 40, {17, 40, n, 33}, w, {4, 2}, 16));
      cases.push_back(make_decode(q, 200, {n, 200, 130}, w, {2, 2}, 32));
    }
  }
  if (!check.quick()) {
    for (const int32_t n : {255, 256, 257, 513}) {
      cases.push_back(make_decode(1, 520, {n, 520}, -1, {8, 2}, 32));
      cases.push_back(make_decode(1, 520, {n, 520}, 100, {8, 2}, 128));
    }
  }
  check.each(cases, judge_numbers);
}

void check_chunks(Check& check) {
  std::vector<Case> cases;
  const std::vector<int64_t> chunks =
      check.quick() ? std::vector<int64_t>{5, 1} : std::vector<int64_t>{5, 1, 7, 16, 64};
  for (const int64_t total : {24, 70}) {
    for (const int64_t w : {-1, 9, 30}) {
      for (const int64_t chunk : chunks) {
        if (check.quick() && chunk == 1 && total > 30) continue;
        const auto n = static_cast<int32_t>(total);
        Case c = make_decode(total, total + 2, {n, n}, w, {4, 2}, 16);
        c.chunk = chunk;
        cases.push_back(c);
      }
    }
  }
  check.each(cases, judge_chunks);
}

void check_tails(Check& check) {
  std::vector<Case> cases;
  for (const int64_t w : {-1, 8}) {
    cases.push_back(make_decode(1, 128, {3, 1, 64}, w, {4, 2}, 16));
    cases.push_back(make_decode(2, 128, {127, 33}, w, {2, 1}, 32));
    cases.push_back(make_decode(1, 8, {7}, w, {2, 1}, 16));
  }
  check.each(cases, judge_tail);
}

void check_behind_window(Check& check) {
  std::vector<Case> cases;
  for (const int64_t w : {8, 0, 1, 33}) {
    cases.push_back(make_decode(1, 48, {40, 45}, w, {4, 2}, 16));
    cases.push_back(make_decode(1, 300, {257, 300}, w, {2, 1}, 32));
  }
  check.each(cases, judge_behind);
}

}  // namespace heddle::conformance
