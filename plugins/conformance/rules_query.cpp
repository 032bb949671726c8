// Whether query() is honest: a yes is a promise, a no has reasons that are true.
#include <charconv>
#include <cstring>
#include <thread>

#include "plugins/conformance/faults.h"
#include "plugins/conformance/grids.h"
#include "plugins/conformance/rules.h"
#include "plugins/conformance/want.h"

namespace heddle::conformance {
namespace {

// A small generator of its own: the grid is a function of the seed alone.
class Dice {
 public:
  explicit Dice(int64_t seed) : state_(static_cast<uint64_t>(seed) * 2654435761u + 12345u) {}
  template <class T>
  T pick(std::initializer_list<T> values) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return values.begin()[(state_ >> 33) % values.size()];
  }

 private:
  uint64_t state_;
};

Case random_case(Dice& dice, int64_t seed) {
  const auto op = dice.pick<uint32_t>({HEDDLE_OP_FORWARD, HEDDLE_OP_BACKWARD, HEDDLE_OP_DECODE});
  const Heads heads = dice.pick<Heads>({{1, 1}, {2, 1}, {4, 4}, {6, 2}, {3, 1}, {8, 2}});
  const int64_t dim = dice.pick<int64_t>({1, 3, 8, 16, 40, 64, 96, 128, 160, 256, 264});
  const int64_t window = dice.pick<int64_t>({-1, -1, 0, 1, 13, 64, 500});
  const int64_t n = dice.pick<int64_t>({1, 2, 7, 33, 64, 100});
  Case c;
  if (op == HEDDLE_OP_DECODE) {
    const auto len = static_cast<int32_t>(n);
    c = make_decode(std::min<int64_t>(n, dice.pick<int64_t>({1, 1, 2, 6})),
                    n + dice.pick<int64_t>({0, 1, 30}), {len, (len + 1) / 2}, window, heads, dim);
  } else {
    c = make_case(op, n, n + dice.pick<int64_t>({0, 0, 0, 9}), window, heads, dim,
                  dice.pick<int64_t>({1, 2}));
  }
  c.causal = dice.pick<int>({1, 1, 1, 0}) == 1;
  c.lse = dice.pick<int>({1, 0}) == 1;
  c.deterministic = dice.pick<int>({1, 0}) == 1;
  c.dtype = dice.pick<uint32_t>(
      {HEDDLE_DTYPE_F32, HEDDLE_DTYPE_F32, HEDDLE_DTYPE_BF16, HEDDLE_DTYPE_F16});
  c.align = dice.pick<uint32_t>({4, 16, 64});
  c.layout = dice.pick<Layout>(
      {Layout::kContiguous, Layout::kPadded, Layout::kPacked, Layout::kHeadMajor});
  c.seed = seed;
  return c;
}

// What is wrong with the reasons of a no.
std::string reason_problem(const heddle_attention_problem& p, const Answer& answer) {
  if (answer.reason_count == 0) return "query says no without a reason (reason_count is 0)";
  for (const Reason& r : answer.reasons) {
    const std::string name = "a reason of query() (" + describe(r) + ")";
    if (r.field.empty()) return name + " names no field";
    if (r.got.empty()) return name + " does not say what it got";
    if (r.want.empty()) return name + " does not say what it wants";
    if (r.code == 0 || (r.code > HEDDLE_REASON_FEATURE && r.code != HEDDLE_REASON_OTHER)) {
      return name + " has the unknown code " + std::to_string(r.code);
    }
    const auto actual = get_field(p, r.field);
    int64_t got = 0;
    const auto parsed = std::from_chars(r.got.data(), r.got.data() + r.got.size(), got);
    const bool whole = parsed.ec == std::errc{} && parsed.ptr == r.got.data() + r.got.size();
    if (actual && whole && got != *actual) {
      return name + " got it wrong: the problem has " + r.field + "=" + std::to_string(*actual);
    }
  }
  return {};
}

Judgement judge_promise(Session& session, const Case& c, bool explain) {
  const heddle_attention_problem p = session.problem(c);
  const Answer answer = session.query(p);
  if (!answer.violation.empty()) return Judgement::failed(answer.violation);
  if (answer.supported) return judge_numbers(session, c, explain);
  if (!answer.asked) return Judgement::refused(answer.refusal());
  const std::string wrong = reason_problem(p, answer);
  return wrong.empty() ? Judgement::refused(answer.refusal()) : Judgement::failed(wrong);
}

heddle_attention_problem plain_problem(Session& session, uint32_t op) {
  Case c = op == HEDDLE_OP_DECODE ? make_decode(1, 64, {64}, -1, {6, 2}, 64)
                                  : make_case(op, 64, 64, -1, {6, 2}, 64);
  c = session.adapted(c);
  return session.problem(c);
}

struct Change {
  const char* field;
  int64_t value;
};

// Changes that a plugin may well refuse.
constexpr Change kUnusual[] = {{"head_dim", 257},
                               {"head_dim", 300},
                               {"head_dim", 1000},
                               {"head_dim", 5},
                               {"n_kv_head", 4},
                               {"window_left", -2},
                               {"window_left", 7},
                               {"dtype", HEDDLE_DTYPE_F16},
                               {"dtype", HEDDLE_DTYPE_BF16},
                               {"mask", 9},
                               {"mask", HEDDLE_MASK_NONE},
                               {"q_pos0", 3},
                               {"max_workspace", 1},
                               {"q_len", 7},
                               {"k_len", 99},
                               {"batch", 3},
                               {"align_bytes", 4}};

// Changes that the header forbids.
constexpr Change kInvalid[] = {{"window_left", -2}, {"window_left", -128}, {"n_kv_head", 4},
                               {"n_kv_head", 0},    {"n_kv_head", 7},      {"mask", 9},
                               {"dtype", 77}};

std::string text_of(const Change& change) {
  return std::string(change.field) + " " + std::to_string(change.value);
}

bool still_there(const Answer& answer, const Reason& reason) {
  for (const Reason& r : answer.reasons) {
    if (!answer.supported && r.code == reason.code && r.field == reason.field) return true;
  }
  return false;
}

void try_remedies(Check& check, const heddle_attention_problem& problem, const Reason& reason) {
  const auto values = wanted_values(reason.want, problem);
  if (!values) {
    return check.note("want \"" + reason.want + "\" of " + reason.field +
                      " is not in a form that can be tried");
  }
  for (const int64_t value : *values) {
    heddle_attention_problem better = problem;
    if (!set_field(better, reason.field, value)) return;
    const Answer answer = check.session().query(better);
    check.ran(problem.op);
    check.expect(answer.violation.empty(), answer.violation);
    check.expect(!still_there(answer, reason), "query wants " + reason.field + " " + reason.want +
                                                   ", but refuses " + reason.field + "=" +
                                                   std::to_string(value) + " for the same reason");
  }
}

bool same(const Answer& a, const Answer& b) {
  if (a.supported != b.supported || a.kernel != b.kernel || a.reason_count != b.reason_count ||
      a.workspace_bytes != b.workspace_bytes || a.workspace_align != b.workspace_align) {
    return false;
  }
  const size_t n = std::min(a.reasons.size(), b.reasons.size());
  for (size_t i = 0; i < n; ++i) {
    if (describe(a.reasons[i]) != describe(b.reasons[i])) return false;
  }
  return true;
}

Judgement judge_pure(Session& session, const Case& c, bool) {
  const heddle_attention_problem p = session.problem(c);
  const Answer first = session.query(p);
  if (!first.violation.empty()) return Judgement::failed(first.violation);
  const auto differs = [&](const char* when, const Answer& again) {
    return Judgement::failed(std::string("query answers the same problem differently ") + when,
                             first.refusal() + " (kernel " + first.kernel + ") and " +
                                 again.refusal() + " (kernel " + again.kernel + ")");
  };
  for (const uint32_t capacity : {8u, 1u, 0u}) {
    const Answer again = session.query(p, capacity);
    if (!again.violation.empty()) return Judgement::failed(again.violation);
    if (!same(first, again)) return differs("the second time", again);
  }
  Answer elsewhere;
  std::thread([&] {
    prepare_thread_for_faults();
    elsewhere = session.query(p);
  }).join();
  if (!same(first, elsewhere)) return differs("from another thread", elsewhere);
  if (!first.supported) return Judgement::passed();
  const CallResult call = call_plugin(session, c, inputs_of(c));
  if (!call.trouble.empty()) return Judgement::failed(call.trouble);
  const Answer after = session.query(p);
  return same(first, after) ? Judgement::passed() : differs("after a call", after);
}

bool good_name(const char* name) {
  if (name == nullptr || *name == '\0') return false;
  return std::strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == std::strlen(name);
}

}  // namespace

void check_table(Check& check) {
  const heddle_attention_plugin& t = check.session().table();
  check.ran();
  check.expect(t.magic == HEDDLE_ATTENTION_MAGIC, "magic is not HEDDLE_ATTENTION_MAGIC");
  check.expect(t.abi_major == HEDDLE_ATTENTION_ABI_MAJOR, "abi_major is not 1");
  check.expect(t.struct_size >= sizeof(heddle_attention_plugin) || t.abi_minor > 0,
               "struct_size is smaller than the table of ABI 1.0");
  check.expect(good_name(t.name), "name is not [a-z0-9_]+");
  check.expect(t.version != nullptr && *t.version != '\0', "version is empty");
  check.expect(t.description != nullptr && std::strchr(t.description, '\n') == nullptr,
               "description is not one line");
  check.expect(t.create && t.destroy && t.query, "create, destroy and query are required");
  check.expect(t.forward || t.backward || t.decode, "it offers no operation");
  check.expect(t.backward == nullptr || t.forward != nullptr, "backward without forward");
  constexpr uint32_t kProperties = HEDDLE_PROP_CTX_CONCURRENT | HEDDLE_PROP_ALLOCATES |
                                   HEDDLE_PROP_OWN_THREADS | HEDDLE_PROP_NO_LSE;
  check.expect((t.properties & ~kProperties) == 0,
               "properties has bits that ABI 1.0 does not know");
  if (t.properties & HEDDLE_PROP_ALLOCATES) check.note("declares ALLOCATES");
  if (t.properties & HEDDLE_PROP_OWN_THREADS) check.note("declares OWN_THREADS");
  if (t.properties & HEDDLE_PROP_NO_LSE) check.note("declares NO_LSE");
}

void check_promises(Check& check) {
  Dice dice(check.seed());
  std::vector<Case> cases;
  const int count = check.quick() ? 150 : 5000;
  for (int i = 0; i < count; ++i) cases.push_back(random_case(dice, i + 1));
  check.each(cases, judge_promise, Adapt::kNothing);
}

void check_wants(Check& check) {
  for (const uint32_t op : {HEDDLE_OP_FORWARD, HEDDLE_OP_BACKWARD, HEDDLE_OP_DECODE}) {
    if (!check.wants(op) || !check.session().offers(op)) continue;
    for (const Change& change : kUnusual) {
      heddle_attention_problem p = plain_problem(check.session(), op);
      set_field(p, change.field, change.value);
      const Answer answer = check.session().query(p);
      if (!answer.asked || answer.supported || !answer.violation.empty()) continue;
      const std::string wrong = reason_problem(p, answer);
      check.expect(wrong.empty(), wrong);
      for (const Reason& reason : answer.reasons) try_remedies(check, p, reason);
    }
  }
  check.skip("it refuses none of the unusual problems");
}

void check_invalid(Check& check) {
  for (const uint32_t op : {HEDDLE_OP_FORWARD, HEDDLE_OP_BACKWARD, HEDDLE_OP_DECODE}) {
    if (!check.wants(op) || !check.session().offers(op)) continue;
    for (const Change& change : kInvalid) {
      heddle_attention_problem p = plain_problem(check.session(), op);
      if (std::strcmp(change.field, "n_kv_head") == 0) p.n_head = 6;
      set_field(p, change.field, change.value);
      const Answer answer = check.session().query(p);
      if (!answer.asked) continue;
      check.ran(op);
      check.expect(!answer.violation.starts_with("query crashes"),
                   answer.violation + " for " + text_of(change));
      check.expect(!answer.supported, "query says yes to " + text_of(change) +
                                          ", which the header forbids" +
                                          (change.field[0] == 'n' ? " (n_head is 6)" : ""));
    }
  }
}

void check_pure_query(Check& check) {
  Dice dice(check.seed() + 99);
  std::vector<Case> cases;
  for (int i = 0; i < (check.quick() ? 40 : 300); ++i) cases.push_back(random_case(dice, i + 1));
  check.each(cases, judge_pure, Adapt::kNothing);
}

}  // namespace heddle::conformance
