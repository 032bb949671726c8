// AttentionHost: the catalogue of plugins, a choice per kind of layer, and bindings.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "framework/attention/attention.h"
#include "framework/attention/bound.h"
#include "framework/attention/catalog.h"
#include "framework/attention/converted.h"
#include "framework/attention/names.h"
#include "framework/attention/selection.h"
#include "framework/attention/validation.h"
#include "framework/core/error.h"
#include "framework/core/log.h"

namespace heddle {
namespace {

class Host final : public AttentionHost {
 public:
  Host(const AttentionConfig& config, Device& device);

  void select(const std::vector<AttentionLayerKind>& kinds, int64_t batch, int64_t seq_len,
              const AttentionLayout& layout) override;
  std::string explain() const override;
  const std::string& backend(const AttentionLayerKind& kind) const override {
    return selected(kind).backend->name();
  }
  std::string replay_refusal() const override;
  std::string fingerprint() const override;

  BoundAttention& bind_forward(const AttentionLayerKind& kind, int64_t batch, int64_t seq_len,
                               const AttentionLayout& layout, bool with_lse) override;
  BoundAttention& bind_backward(const AttentionLayerKind& kind, int64_t batch, int64_t seq_len,
                                const AttentionLayout& layout) override;
  BoundAttention& bind_decode(const AttentionLayerKind& kind, int64_t batch, int64_t q_len,
                              int64_t capacity, const AttentionLayout& layout) override;

 private:
  const Selection& selected(const AttentionLayerKind& kind) const;
  BoundAttention* find(const heddle_attention_problem& asked, const Backend* asked_first);
  BoundAttention& bind(Backend& backend, const heddle_attention_problem& asked);
  BoundAttention& keep(const Backend* asked_first, Backend& backend,
                       const heddle_attention_problem& asked,
                       const heddle_attention_problem& problem, const QueryAnswer& answer);

  [[noreturn]] void refuse_unknown_name(const std::string& name) const;
  void refuse_named_files() const;

  struct Kept {
    const Backend* asked_first;  // whom the selection named; decode may have gone on to another
    std::unique_ptr<Binding> binding;
    std::unique_ptr<ValidatedAttention> validated;  // only with attention.validate
    std::unique_ptr<ConvertedAttention> converted;  // only where the plugin reads bf16

    BoundAttention& get() const {
      if (converted != nullptr) return *converted;
      if (validated != nullptr) return *validated;
      return *binding;
    }
  };

  Device& device_;
  PluginCatalog catalog_;
  std::vector<std::unique_ptr<Backend>> backends_;  // in order of preference
  std::vector<Backend*> all_, candidates_;
  bool named_ = false;
  bool validate_ = false;
  int64_t validate_every_ = 1;
  std::vector<Selection> selections_;
  std::vector<Kept> bindings_;
};

Host::Host(const AttentionConfig& config, Device& device)
    : device_(device),
      catalog_(make_plugin_catalog(config)),
      named_(config.backend != "auto"),
      validate_(config.validate || validation_from_environment()),
      validate_every_(config.validate_every) {
  refuse_named_files();
  for (const PluginCandidate& c : catalog_.plugins) {
    backends_.push_back(std::make_unique<Backend>(c, device));
    all_.push_back(backends_.back().get());
  }
  if (all_.empty()) {
    throw plugin_error(fmt::format("no attention plugin was found; searched: {}",
                                   fmt::join(catalog_.files.folders, ", ")),
                       "build the target heddle_cpu_sdpa or set attention.plugin_path");
  }
  candidates_ = all_;
  if (!named_) return;
  const auto usable = std::find_if(all_.begin(), all_.end(), [&](const Backend* b) {
    return b->candidate().report.usable && b->name() == config.backend;
  });
  if (usable == all_.end()) refuse_unknown_name(config.backend);
  if ((*usable)->context() == nullptr) {
    throw plugin_error(fmt::format("attention backend '{}' ({}) {}", config.backend,
                                   (*usable)->candidate().file.path, (*usable)->refusal()),
                       "choose another attention.backend or set it to auto");
  }
  candidates_ = {*usable};
}

// A file that the user named is meant: that it cannot be used is an error, not a note.
void Host::refuse_named_files() const {
  for (const PluginCandidate& c : catalog_.plugins) {
    if (c.file.named && !c.report.usable) {
      throw plugin_error(
          fmt::format("{}, named by {}, {}", c.file.path, c.file.source, c.report.refusal),
          c.report.remedy);
    }
  }
}

void Host::refuse_unknown_name(const std::string& name) const {
  std::vector<std::string> names;
  for (const Backend* b : all_) {
    if (b->candidate().report.usable) {
      names.push_back(b->name());
    } else if (b->name() == name) {
      throw plugin_error(fmt::format("attention backend '{}': {} {}", name,
                                     b->candidate().file.path, b->candidate().report.refusal),
                         b->candidate().report.remedy);
    }
  }
  throw plugin_error(
      fmt::format("attention.backend names '{}', but the plugins found are: {} "
                  "(searched {})",
                  name, names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")),
                  fmt::join(catalog_.files.folders, ", ")),
      "name one of them, set it to auto, or add to attention.plugin_path");
}

void Host::select(const std::vector<AttentionLayerKind>& kinds, int64_t batch, int64_t seq_len,
                  const AttentionLayout& layout) {
  for (const AttentionLayerKind& kind : kinds) {
    Selection chosen =
        choose_backend(device_, {kind, batch, seq_len, layout}, candidates_, all_, named_);
    const auto old = std::find_if(selections_.begin(), selections_.end(),
                                  [&](const Selection& s) { return s.shape.kind == kind; });
    if (old != selections_.end()) {
      *old = std::move(chosen);
    } else {
      selections_.push_back(std::move(chosen));
    }
  }
}

std::string Host::replay_refusal() const {
  if (validate_) return "attention.validate looks at every call";
  for (const Selection& s : selections_) {
    const PluginContext* context = s.backend->context();
    if (context->has(HEDDLE_PROP_ALLOCATES)) {
      return fmt::format("attention backend '{}' allocates in its calls", s.backend->name());
    }
  }
  return {};
}

std::string Host::explain() const {
  std::vector<std::string> paragraphs;
  for (const Selection& s : selections_) paragraphs.push_back(selection_text(s));
  for (const std::string& path : catalog_.files.not_found) {
    paragraphs.push_back(fmt::format("HEDDLE_PLUGIN_PATH names {}, which does not exist", path));
  }
  return fmt::format("{}", fmt::join(paragraphs, "\n"));
}

std::string Host::fingerprint() const {
  std::vector<std::string> lines;
  for (const Selection& s : selections_) lines.push_back(selection_fingerprint(s));
  return fmt::format("{}", fmt::join(lines, "\n"));
}

const Selection& Host::selected(const AttentionLayerKind& kind) const {
  for (const Selection& s : selections_) {
    if (s.shape.kind == kind) return s;
  }
  throw plugin_error(fmt::format("no backend was chosen for attention with {}", kind_text(kind)),
                     "report this: select() must name every kind before it is used");
}

BoundAttention* Host::find(const heddle_attention_problem& asked, const Backend* asked_first) {
  for (const Kept& kept : bindings_) {
    if (kept.asked_first == asked_first && kept.binding->answers(asked)) return &kept.get();
  }
  return nullptr;
}

BoundAttention& Host::keep(const Backend* asked_first, Backend& backend,
                           const heddle_attention_problem& asked,
                           const heddle_attention_problem& problem, const QueryAnswer& answer) {
  Kept kept{asked_first,
            std::make_unique<Binding>(*backend.context(), device_, asked, problem, answer), nullptr,
            nullptr};
  if (validate_) {
    kept.validated = std::make_unique<ValidatedAttention>(*kept.binding, label_, validate_every_);
  }
  if (problem.dtype != asked.dtype) {
    kept.converted = std::make_unique<ConvertedAttention>(kept.get(), asked, device_);
  }
  bindings_.push_back(std::move(kept));
  return bindings_.back().get();
}

BoundAttention& Host::bind(Backend& backend, const heddle_attention_problem& asked) {
  if (BoundAttention* known = find(asked, &backend); known != nullptr) return *known;
  heddle_attention_problem problem = asked;
  const QueryAnswer answer = ask(backend, problem);
  if (answer.supported) return keep(&backend, backend, asked, problem, answer);
  throw plugin_error(fmt::format("attention backend '{}' cannot run {}: {}", backend.name(),
                                 problem_text(asked), answer.refusal),
                     "change the batch or length, or choose another attention.backend");
}

BoundAttention& Host::bind_forward(const AttentionLayerKind& kind, int64_t batch, int64_t seq_len,
                                   const AttentionLayout& layout, bool with_lse) {
  Backend& backend = *selected(kind).backend;
  const bool lse = with_lse && !backend.context()->has(HEDDLE_PROP_NO_LSE);
  return bind(backend, device_problem(device_, kind, HEDDLE_OP_FORWARD, batch, seq_len, seq_len,
                                      layout, lse));
}

BoundAttention& Host::bind_backward(const AttentionLayerKind& kind, int64_t batch, int64_t seq_len,
                                    const AttentionLayout& layout) {
  return bind(*selected(kind).backend, device_problem(device_, kind, HEDDLE_OP_BACKWARD, batch,
                                                      seq_len, seq_len, layout, false));
}

BoundAttention& Host::bind_decode(const AttentionLayerKind& kind, int64_t batch, int64_t q_len,
                                  int64_t capacity, const AttentionLayout& layout) {
  const Selection& selection = selected(kind);
  const heddle_attention_problem asked =
      device_problem(device_, kind, HEDDLE_OP_DECODE, batch, q_len, capacity, layout, false);
  if (BoundAttention* known = find(asked, selection.decode_backend); known != nullptr)
    return *known;
  std::vector<Backend*> order;
  if (selection.decode_backend != nullptr) order.push_back(selection.decode_backend);
  for (Backend* b : all_) {
    if (b != selection.decode_backend) order.push_back(b);
  }
  std::vector<std::string> refusals;
  for (Backend* b : order) {
    heddle_attention_problem problem = asked;
    const QueryAnswer answer = ask(*b, problem);
    if (answer.supported) {
      if (b != selection.decode_backend) {
        log::warn("attention: {} runs on {}; {}", problem_text(asked), b->title(),
                  fmt::join(refusals, "; "));
      }
      return keep(selection.decode_backend, *b, asked, problem, answer);
    }
    refusals.push_back(fmt::format("not by {}: {}", b->title(), answer.refusal));
  }
  throw plugin_error(fmt::format("no attention backend can run {}: {}", problem_text(asked),
                                 fmt::join(refusals, "; ")),
                     "name a plugin with decode in attention.plugin_path");
}

}  // namespace

std::unique_ptr<AttentionHost> AttentionHost::create(const AttentionConfig& config,
                                                     Device& device) {
  return std::make_unique<Host>(config, device);
}

}  // namespace heddle
