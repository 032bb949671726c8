#include "framework/cli/bench_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "framework/attention/names.h"
#include "framework/attention/selection.h"
#include "framework/core/error.h"
#include "framework/train/run.h"
#include "plugins/conformance/dtype.h"

namespace heddle {
namespace {

constexpr std::array<uint32_t, 3> kOps = {HEDDLE_OP_FORWARD, HEDDLE_OP_BACKWARD, HEDDLE_OP_DECODE};

void add_ops(std::vector<BenchCase>& cases, BenchCase c, const std::vector<uint32_t>& ops,
             int64_t training_batch) {
  for (const uint32_t op : ops) {
    c.op = op;
    c.batch = op == HEDDLE_OP_DECODE ? 1 : training_batch;
    cases.push_back(c);
  }
}

// One entry of a shapes file, strictly.
class Entry {
 public:
  Entry(const json::value& value, std::string where) : where_(std::move(where)) {
    if (!value.is_object()) refuse("is not an object");
    object_ = &value.as_object();
    for (const auto& [key, unused] : *object_) {
      constexpr std::string_view kKnown[] = {"seq_len", "n_head",      "n_kv_head", "head_dim",
                                             "batch",   "window_left", "ops"};
      if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown)) {
        refuse(fmt::format("has the unknown key '{}'", std::string_view(key)));
      }
    }
  }

  int64_t number(std::string_view key, int64_t least, int64_t otherwise) const {
    const json::value* v = object_->if_contains(key);
    if (v == nullptr) {
      if (otherwise < least) refuse(fmt::format("lacks '{}'", key));
      return otherwise;
    }
    if (!v->is_int64() || v->as_int64() < least || v->as_int64() > kMost) {
      refuse(fmt::format("has {}: {}, expected a whole number of at least {}", key,
                         json::serialize(*v), least));
    }
    return v->as_int64();
  }

  std::vector<uint32_t> ops() const {
    const json::value* v = object_->if_contains("ops");
    if (v == nullptr) return {kOps.begin(), kOps.end()};
    if (!v->is_array()) refuse("has ops that are no list");
    std::vector<uint32_t> ops;
    for (const json::value& name : v->as_array()) {
      const auto op = std::find_if(kOps.begin(), kOps.end(), [&](uint32_t o) {
        return name.is_string() && op_name(o) == std::string_view(name.as_string());
      });
      if (op == kOps.end()) {
        refuse(fmt::format("has the operation {}, expected forward, backward or decode",
                           json::serialize(name)));
      }
      ops.push_back(*op);
    }
    return ops;
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw config_error(fmt::format("{} {}", where_, what),
                       R"(write e.g. [{"seq_len": 2048, "n_head": 8, "head_dim": 64}])");
  }

 private:
  static constexpr int64_t kMost = 1 << 30;
  std::string where_;
  const json::object* object_ = nullptr;
};

}  // namespace

std::string shape_text(const BenchCase& c) {
  return fmt::format("B {} T {} {}", c.batch, c.seq_len, kind_text(c.kind));
}

int64_t visible_pairs(const BenchCase& c) {
  const int64_t w = c.kind.window_left, n = c.seq_len;
  if (c.op == HEDDLE_OP_DECODE) return w < 0 ? n : std::min(n, w + 1);
  if (w < 0 || w >= n - 1) return n * (n + 1) / 2;
  return (w + 1) * (w + 2) / 2 + (n - w - 1) * (w + 1);  // growing rows, then full ones
}

double flops(const BenchCase& c) {
  const double pairs = static_cast<double>(visible_pairs(c) * c.batch * c.kind.n_head);
  const double per_pair = c.op == HEDDLE_OP_BACKWARD ? 10.0 : 4.0;
  return per_pair * static_cast<double>(c.kind.head_dim) * pairs;
}

double cache_bytes(const BenchCase& c) {
  return 2.0 * static_cast<double>(conformance::element_bytes(c.dtype)) *
         static_cast<double>(visible_pairs(c) * c.batch * c.kind.n_kv_head * c.kind.head_dim);
}

AttentionLayout contiguous_layout(const AttentionLayerKind& kind) {
  AttentionLayout l;
  l.q_row = l.out_row = l.dq_row = l.dout_row = kind.n_head * kind.head_dim;
  l.k_row = l.v_row = l.dk_row = l.dv_row = kind.n_kv_head * kind.head_dim;
  return l;
}

ModelSpec attention_spec(const Config& config) {
  constexpr int64_t kBytes = 257;  // every byte and a separator
  return resolve_model(config.model, config.model.vocab_size.value_or(kBytes));
}

std::vector<BenchCase> cases_of_run(const Config& config) {
  const ModelSpec spec = attention_spec(config);
  const BatchPlan plan = plan_batch(config.train, spec.sequence_len, 0, 1);
  std::vector<BenchCase> cases;
  for (const AttentionLayerKind& kind : attention_kinds(spec)) {
    BenchCase c;
    c.kind = kind;
    c.seq_len = spec.sequence_len;
    c.layout = attention_layout(spec);
    add_ops(cases, c, {kOps.begin(), kOps.end()}, std::max<int64_t>(plan.micro_batch, 1));
  }
  return cases;
}

std::vector<BenchCase> cases_of_sweep() {
  std::vector<BenchCase> cases;
  for (const int64_t seq_len : {128, 256, 512, 1024}) {
    for (const int64_t window : {int64_t{-1}, seq_len / 4}) {
      BenchCase c;
      c.kind = {4, 4, 64, window};
      c.seq_len = seq_len;
      c.layout = contiguous_layout(c.kind);
      add_ops(cases, c, {kOps.begin(), kOps.end()}, 1);
    }
  }
  return cases;
}

std::vector<BenchCase> cases_of_file(const std::string& path) {
  const json::value file = json::read_file(path);
  if (!file.is_array()) {
    throw config_error(path + " holds no list of shapes",
                       R"(write e.g. [{"seq_len": 2048, "n_head": 8, "head_dim": 64}])");
  }
  std::vector<BenchCase> cases;
  for (size_t i = 0; i < file.as_array().size(); ++i) {
    const Entry entry(file.as_array()[i], fmt::format("{}: shape {}", path, i + 1));
    BenchCase c;
    c.seq_len = entry.number("seq_len", 1, 0);
    c.kind.n_head = entry.number("n_head", 1, 0);
    c.kind.n_kv_head = entry.number("n_kv_head", 1, c.kind.n_head);
    c.kind.head_dim = entry.number("head_dim", 1, 0);
    c.kind.window_left = entry.number("window_left", -1, -1);
    if (c.kind.n_head % c.kind.n_kv_head != 0) {
      entry.refuse(fmt::format("has n_kv_head {}, which does not divide n_head {}",
                               c.kind.n_kv_head, c.kind.n_head));
    }
    c.layout = contiguous_layout(c.kind);
    add_ops(cases, c, entry.ops(), entry.number("batch", 1, 1));
  }
  return cases;
}

std::string case_to_text(const BenchCase& c) {
  const AttentionLayout& l = c.layout;
  return json::serialize(json::array{c.op, c.kind.n_head, c.kind.n_kv_head, c.kind.head_dim,
                                     c.kind.window_left, c.batch, c.seq_len, l.q_row, l.k_row,
                                     l.v_row, l.out_row, l.dq_row, l.dk_row, l.dv_row, l.dout_row,
                                     c.dtype});
}

BenchCase case_from_text(const std::string& text) {
  const auto n = json::value_to<std::vector<int64_t>>(json::parse_strict(text));
  BenchCase c;
  c.op = static_cast<uint32_t>(n.at(0));
  c.kind = {n.at(1), n.at(2), n.at(3), n.at(4)};
  c.batch = n.at(5);
  c.seq_len = n.at(6);
  c.layout = {n.at(7), n.at(8), n.at(9), n.at(10), n.at(11), n.at(12), n.at(13), n.at(14)};
  c.dtype = static_cast<uint32_t>(n.at(15));
  return c;
}

}  // namespace heddle
