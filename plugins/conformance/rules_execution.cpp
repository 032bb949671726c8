// Workers, repetition and threads.
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>

#include "plugins/conformance/faults.h"
#include "plugins/conformance/grids.h"
#include "plugins/conformance/rules.h"

namespace heddle::conformance {
namespace {

constexpr Order kOrders[] = {Order::kInOrder, Order::kReversed, Order::kShuffled, Order::kOnePiece};

const char* order_text(Order order) {
  constexpr const char* kTexts[] = {"in order", "reversed", "shuffled", "in one piece"};
  return kTexts[static_cast<size_t>(order)];
}

// The first element whose bits differ.
std::string bit_difference(const Case& c, const char* name, const std::vector<float>& a,
                           const std::vector<float>& b) {
  const Shape s = shape_of(c, name);
  for (int64_t batch = 0; batch < s.batch; ++batch) {
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t row = 0; row < s.tokens; ++row) {
        for (int64_t d = 0; d < s.dim; ++d) {
          const size_t n = s.at(batch, h, row, d);
          if (std::bit_cast<uint32_t>(a[n]) == std::bit_cast<uint32_t>(b[n])) continue;
          char text[200];
          std::snprintf(text, sizeof text,
                        "%s (b %lld, h %lld, row %lld, dim %lld): %.9g (0x%08x) and %.9g (0x%08x)",
                        name, static_cast<long long>(batch), static_cast<long long>(h),
                        static_cast<long long>(row), static_cast<long long>(d), a[n],
                        std::bit_cast<uint32_t>(a[n]), b[n], std::bit_cast<uint32_t>(b[n]));
          return text;
        }
      }
    }
  }
  return {};
}

std::string bit_difference(const Case& c, const Arrays& a, const Arrays& b) {
  for (const auto& [name, x, y] :
       {std::tuple{"out", &a.out, &b.out}, std::tuple{"lse", &a.lse, &b.lse},
        std::tuple{"dq", &a.dq, &b.dq}, std::tuple{"dk", &a.dk, &b.dk},
        std::tuple{"dv", &a.dv, &b.dv}}) {
    if (x->size() != y->size() || x->empty()) continue;
    if (std::string text = bit_difference(c, name, *x, *y); !text.empty()) return text;
  }
  return {};
}

Judgement judge_determinism(Session& session, const Case& c, int repeats) {
  const Arrays inputs = inputs_of(c);
  Case base = c;
  base.deterministic = true;
  const CallResult first = call_plugin(session, base, inputs);
  if (!first.ran()) return Judgement::of(first);
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (int64_t workers = 1; workers <= kMostWorkers; ++workers) {
      for (const Order order : kOrders) {
        Case again = base;
        again.workers = workers;
        again.order = order;
        const CallResult second = call_plugin(session, again, inputs);
        if (!second.ran()) return Judgement::of(second);
        const std::string difference = bit_difference(c, first.got, second.got);
        if (difference.empty()) continue;
        return Judgement::failed(
            std::string(op_name(c.op)) +
                ": DETERMINISTIC was accepted, but the bits differ between two calls",
            difference,
            {"one with " + std::to_string(base.workers) + " workers " + order_text(base.order) +
                 ", one with " + std::to_string(workers) + " workers " + order_text(order) +
                 ": sums in the order of arrival, per worker, or by atomics?",
             true});
      }
    }
  }
  return Judgement::passed();
}

// What several threads have in common.
struct Crowd {
  Session& session;
  const Case& c;
  std::vector<heddle_attention_ctx*> contexts;
  std::atomic<int> waiting{0};
  std::mutex mutex;
  Judgement judgement;
};

// At least a few rounds, and no more than the time allows on a busy machine.
constexpr int kLeastRounds = 3;
constexpr std::chrono::seconds kMostTime{2};

void one_of_many(Crowd& crowd, size_t thread, int rounds) {
  prepare_thread_for_faults();
  Case c = crowd.c;
  c.seed += static_cast<int64_t>(thread) * 77;
  c.workers = kMostWorkers;
  const Arrays inputs = inputs_of(c);
  const Exact want = exact_results(c, inputs);
  const double size = score_size(c, inputs);
  CallOptions options;
  options.ctx = crowd.contexts[thread];
  crowd.waiting.fetch_sub(1);
  while (crowd.waiting.load() > 0) std::this_thread::yield();
  const auto end = std::chrono::steady_clock::now() + kMostTime;
  for (int round = 0; round < rounds; ++round) {
    if (round >= kLeastRounds && std::chrono::steady_clock::now() > end) return;
    const CallResult result = call_plugin(crowd.session, c, inputs, options);
    Judgement j = Judgement::passed();
    if (!result.ran()) {
      j = Judgement::of(result);
    } else if (const auto d = compare_results(c, result.got, want, size)) {
      j = Judgement::failed(std::string(op_name(c.op)) + ": " + d->tensor +
                                " is wrong when several threads call at the same time",
                            describe(*d),
                            {"state that calls share: a static or per-context buffer?", true});
    }
    if (j.kind == Judgement::kPassed) continue;
    const std::lock_guard lock(crowd.mutex);
    if (crowd.judgement.kind == Judgement::kPassed) crowd.judgement = j;
    return;
  }
}

Judgement judge_crowd(Session& session, const Case& c, bool own_contexts, int rounds) {
  constexpr size_t kThreads = kMostWorkers;
  Crowd crowd{session, c, {}, {}, {}, {}};
  for (size_t t = 0; t < kThreads; ++t) {
    crowd.contexts.push_back(own_contexts ? session.new_context(kMostWorkers)
                                          : session.context(kMostWorkers));
  }
  Host& host = session.host(kMostWorkers);
  host.set_concurrent(true);
  crowd.waiting = kThreads;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&crowd, t, rounds] { one_of_many(crowd, t, rounds); });
  }
  for (std::thread& t : threads) t.join();
  host.set_concurrent(false);
  if (own_contexts) {
    for (heddle_attention_ctx* ctx : crowd.contexts) session.table().destroy(ctx);
  }
  return crowd.judgement;
}

}  // namespace

void check_workers(Check& check) {
  std::vector<Case> cases;
  for (const int64_t workers : {3, 1, 2}) {
    for (const Order order : kOrders) {
      Case c = make_case(HEDDLE_OP_FORWARD, 70, 70, 20, {6, 2}, 16, 2);
      c.workers = workers;
      c.order = order;
      add_training(cases, c);
      Case step = make_decode(2, 200, {200, 30}, -1, {6, 2}, 16);
      step.workers = workers;
      step.order = order;
      cases.push_back(step);
    }
  }
  // Long enough for workers to meet in the middle of a race.
  for (int repeat = 0; repeat < (check.quick() ? 4 : 20); ++repeat) {
    Case c = make_case(HEDDLE_OP_BACKWARD, 128, 128, -1, {6, 2}, 32, 2);
    c.workers = kMostWorkers;
    c.seed += repeat;
    cases.push_back(c);
  }
  check.each(cases, judge_numbers);
}

void check_determinism(Check& check) {
  std::vector<Case> cases;
  add_training(cases, make_case(HEDDLE_OP_FORWARD, 70, 70, -1, {6, 2}, 16, 2));
  add_training(cases, make_case(HEDDLE_OP_FORWARD, 130, 130, 33, {4, 1}, 32));
  cases.push_back(make_decode(1, 600, {600, 90}, -1, {4, 2}, 32));
  if (!check.quick()) {
    add_training(cases, make_case(HEDDLE_OP_FORWARD, 257, 257, 100, {8, 2}, 64, 2));
    cases.push_back(make_decode(3, 3000, {3000}, -1, {2, 1}, 64));
    cases.push_back(make_case(HEDDLE_OP_BACKWARD, 1000, 1000, 100, {8, 2}, 64));
    cases.push_back(make_case(HEDDLE_OP_BACKWARD, 700, 700, -1, {4, 4}, 64, 2));
  }
  for (Case& c : cases) c.deterministic = true;
  const int repeats = check.quick() ? 2 : 5;
  check.each(cases, [repeats](Session& session, const Case& c, bool) {
    return judge_determinism(session, c, repeats);
  });
}

void check_concurrency(Check& check) {
  std::vector<Case> cases;
  add_training(cases, make_case(HEDDLE_OP_FORWARD, 50, 50, 20, {4, 2}, 16));
  cases.push_back(make_decode(2, 90, {90, 40}, -1, {4, 2}, 16));
  const int rounds = check.quick() ? 25 : 150;
  check.each(cases, [rounds](Session& session, const Case& c, bool) {
    const Judgement own = judge_crowd(session, c, true, rounds);
    if (own.kind != Judgement::kPassed || !session.has(HEDDLE_PROP_CTX_CONCURRENT)) return own;
    return judge_crowd(session, c, false, rounds);
  });
  if (!check.session().has(HEDDLE_PROP_CTX_CONCURRENT)) {
    check.note("CTX_CONCURRENT is not promised: one context per thread was used");
  }
}

}  // namespace heddle::conformance
