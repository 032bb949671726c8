#include "framework/attention/selection.h"

#include "framework/attention/converted.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "framework/attention/names.h"
#include "framework/core/error.h"

namespace heddle {
namespace {

// What the estimate of a plugin with drawbacks is multiplied by.
constexpr double kDrawbackFactor = 2.0;

// A backend's answers to forward and backward.
struct Offer {
  Backend* backend = nullptr;
  QueryAnswer forward, backward;
  bool deterministic = true;
  std::string refusal;

  bool accepted() const { return refusal.empty(); }
  // 0: unknown.
  double time() const {
    if (forward.est_time_us == 0.0 || backward.est_time_us == 0.0) return 0.0;
    return forward.est_time_us + backward.est_time_us;
  }
  // Properties that weigh against it.
  uint32_t drawbacks() const {
    const PluginContext* context = backend->context();
    constexpr uint32_t kDrawbacks = HEDDLE_PROP_ALLOCATES | HEDDLE_PROP_OWN_THREADS;
    return context == nullptr ? 0 : context->library().table().properties & kDrawbacks;
  }
  double weighed_time() const { return drawbacks() != 0 ? kDrawbackFactor * time() : time(); }
};

Offer ask_training(const Device& device, const TrainingShape& s, Backend& backend) {
  Offer offer;
  offer.backend = &backend;
  const PluginContext* context = backend.context();
  if (context == nullptr) {
    offer.refusal = backend.refusal();
    return offer;
  }
  const bool lse = !context->has(HEDDLE_PROP_NO_LSE);
  for (const uint32_t op : {HEDDLE_OP_FORWARD, HEDDLE_OP_BACKWARD}) {
    const bool forward = op == HEDDLE_OP_FORWARD;
    heddle_attention_problem problem =
        device_problem(device, s.kind, op, s.batch, s.seq_len, s.seq_len, s.layout, forward && lse);
    QueryAnswer answer = ask(backend, problem);
    if (!answer.supported) {
      offer.refusal = fmt::format("{}: {}", op_name(op), answer.refusal);
      return offer;
    }
    offer.deterministic = offer.deterministic && (problem.flags & HEDDLE_FLAG_DETERMINISTIC) != 0;
    (forward ? offer.forward : offer.backward) = std::move(answer);
  }
  return offer;
}

// Whether `a` is to be preferred to `b`, which stands behind it in the search order.
bool before(const Offer& a, const Offer& b) {
  if (a.deterministic != b.deterministic) return a.deterministic;
  if ((a.time() > 0) != (b.time() > 0)) return a.time() > 0;
  return a.weighed_time() < b.weighed_time();
}

// "120 us", "240 us (120 us, counted 2 times because it declares ALLOCATES)".
std::string time_text(const Offer& o) {
  if (o.drawbacks() == 0) return fmt::format("{:.0f} us", o.time());
  return fmt::format("{:.0f} us ({:.0f} us, counted {} times because it declares {})",
                     o.weighed_time(), o.time(), kDrawbackFactor,
                     fmt::join(property_names(o.drawbacks()), ", "));
}

std::string why_behind(const Offer& offer, const Offer& best) {
  if (offer.deterministic != best.deterministic) {
    return "does not promise the same bits every time (DETERMINISTIC)";
  }
  if (offer.time() == 0.0) {
    return best.time() > 0.0 ? "gives no estimated time" : "later in the search order";
  }
  if (offer.weighed_time() == best.weighed_time()) {
    return "as fast by its estimate, but later in the search order";
  }
  return fmt::format("slower by its estimate: {} against {}", time_text(offer), time_text(best));
}

std::string not_line(const Backend& backend, const std::string& reason) {
  return fmt::format("not {} ({}): {}", backend.title(), backend.candidate().file.path, reason);
}

[[noreturn]] void refuse_all(const TrainingShape& s, const std::vector<Offer>& offers, bool named) {
  if (named && offers.size() == 1) {
    throw plugin_error(
        fmt::format("attention backend '{}' cannot train layers with {} (B {}, T {}): {}",
                    offers[0].backend->name(), kind_text(s.kind), s.batch, s.seq_len,
                    offers[0].refusal),
        "change the model, or set attention.backend to auto to allow another backend");
  }
  std::vector<std::string> lines;
  for (const Offer& o : offers) lines.push_back("\n  " + not_line(*o.backend, o.refusal));
  throw plugin_error(fmt::format("no attention backend can train layers with {} (B {}, T {}):{}",
                                 kind_text(s.kind), s.batch, s.seq_len, fmt::join(lines, "")),
                     "change the model or name further plugins in attention.plugin_path");
}

// Decode may run elsewhere: the chosen backend first, then the others in order.
void choose_decode(const Device& device, const std::vector<Backend*>& all, Selection& selection) {
  const TrainingShape& s = selection.shape;
  std::vector<Backend*> order = {selection.backend};
  for (Backend* b : all) {
    if (b != selection.backend) order.push_back(b);
  }
  std::vector<std::string> refusals;
  for (Backend* backend : order) {
    heddle_attention_problem problem =
        device_problem(device, s.kind, HEDDLE_OP_DECODE, 1, 1, s.seq_len, s.layout, false);
    QueryAnswer answer = ask(*backend, problem);
    if (answer.supported) {
      selection.decode_backend = backend;
      selection.decode = std::move(answer);
      break;
    }
    refusals.push_back(fmt::format("decode not by {}: {}", backend->title(), answer.refusal));
  }
  selection.notes.insert(selection.notes.end(), refusals.begin(), refusals.end());
}

}  // namespace

Backend::Backend(PluginCandidate candidate, Device& device)
    : candidate_(std::move(candidate)), device_(device), name_(candidate_.display_name()) {
  if (!candidate_.report.usable) {
    opened_ = true;
    refusal_ = candidate_.why_not();
  }
}

std::string Backend::title() const {
  const std::string& version = candidate_.report.version;
  return version.empty() ? name_ : fmt::format("{} {}", name_, version);
}

PluginContext* Backend::context() {
  if (opened_) return context_.get();
  opened_ = true;
  try {
    context_ = std::make_unique<PluginContext>(PluginLibrary::load(candidate_.file.path),
                                               plugin_device(device_));
  } catch (const Error& error) {
    refusal_ = error.message();
  }
  return context_.get();
}

heddle_device plugin_device(const Device& device) {
  if (device.type() == DeviceType::kCpu) return cpu_plugin_device();
  heddle_device d{};
  d.struct_size = sizeof d;
  d.type = static_cast<uint32_t>(device.type());
  d.index = device.index();
  d.arch = device.arch();
  d.units = device.units();
  return d;
}

heddle_attention_problem device_problem(const Device& device, const AttentionLayerKind& kind,
                                        uint32_t op, int64_t batch, int64_t q_len, int64_t k_len,
                                        const AttentionLayout& layout, bool with_lse) {
  heddle_attention_problem p =
      make_attention_problem(kind, op, batch, q_len, k_len, layout, with_lse);
  p.device_type = static_cast<uint32_t>(device.type());
  p.device_index = device.index();
  return p;
}

QueryAnswer ask(Backend& backend, heddle_attention_problem& problem) {
  QueryAnswer answer;
  const PluginContext* context = backend.context();
  if (context == nullptr) {
    answer.refusal = backend.refusal();
    return answer;
  }
  try {
    if (backend.device().compute_dtype() == DType::kBF16 && problem.op != HEDDLE_OP_DECODE) {
      heddle_attention_problem narrow = bf16_problem(problem);
      answer = context->query_preferring_determinism(narrow);
      if (answer.supported) {
        problem = narrow;
        return answer;
      }
    }
    return context->query_preferring_determinism(problem);
  } catch (const Error& error) {
    answer.refusal = error.message();
    return answer;
  }
}

Selection choose_backend(const Device& device, const TrainingShape& shape,
                         const std::vector<Backend*>& candidates, const std::vector<Backend*>& all,
                         bool named) {
  std::vector<Offer> offers;
  for (Backend* b : candidates) offers.push_back(ask_training(device, shape, *b));
  const Offer* best = nullptr;
  for (const Offer& o : offers) {
    if (o.accepted() && (best == nullptr || before(o, *best))) best = &o;
  }
  if (best == nullptr) refuse_all(shape, offers, named);

  Selection selection;
  selection.shape = shape;
  selection.backend = best->backend;
  selection.forward = best->forward;
  selection.backward = best->backward;
  selection.deterministic = best->deterministic;
  for (const Offer& o : offers) {
    if (&o == best) continue;
    selection.notes.push_back(
        not_line(*o.backend, o.accepted() ? why_behind(o, *best) : o.refusal));
  }
  choose_decode(device, all, selection);
  return selection;
}

std::string kind_text(const AttentionLayerKind& k) {
  return fmt::format(
      "H {} K {} D {} {}", k.n_head, k.n_kv_head, k.head_dim,
      k.window_left < 0 ? "no window" : fmt::format("window_left {}", k.window_left));
}

std::string selection_text(const Selection& s) {
  const auto line = [](const char* op, const Backend* backend, const QueryAnswer& a) {
    if (backend == nullptr) return fmt::format("\n  {:<8} by no backend", op);
    return fmt::format(
        "\n  {:<8} {}, kernel {}{}", op, backend->title(), a.kernel,
        a.est_time_us > 0 ? fmt::format(", {:.0f} us estimated", a.est_time_us) : "");
  };
  std::string text = fmt::format("attention {} (B {}, T {}): {}", kind_text(s.shape.kind),
                                 s.shape.batch, s.shape.seq_len, s.backend->title());
  if (!s.deterministic) text += ", which does not promise the same bits every time";
  text += line("forward", s.backend, s.forward);
  text += line("backward", s.backend, s.backward);
  text += line("decode", s.decode_backend, s.decode);
  for (const std::string& note : s.notes) text += "\n  " + note;
  return text;
}

std::string selection_fingerprint(const Selection& s) {
  const auto part = [](Backend* b, const QueryAnswer& a) {
    if (b == nullptr) return std::string("none");
    const PluginLibrary& library = b->context()->library();
    return fmt::format("{} {} crc32c {:08x} {}", library.name(), library.version(),
                       library.checksum(), a.kernel);
  };
  return fmt::format("{}: forward {}, backward {}, decode {}", kind_text(s.shape.kind),
                     part(s.backend, s.forward), part(s.backend, s.backward),
                     part(s.decode_backend, s.decode));
}

}  // namespace heddle
