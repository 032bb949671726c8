#include "framework/checkpoint/weights.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "framework/checkpoint/checkpoint.h"
#include "framework/core/error.h"
#include "framework/core/file.h"

namespace heddle {
namespace {

constexpr std::string_view kCompiledPrefix = "_orig_mod.";
constexpr std::string_view kReferencePrefix = "param/";

std::string list_text(const std::string& what, const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  if (names.empty()) return "";
  std::string text = what;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += (i > 0 ? ", " : " ") + names[i];
  }
  if (names.size() > kShown) text += " and " + std::to_string(names.size() - kShown) + " more";
  return text + "; ";
}

}  // namespace

Weights Weights::load(const std::string& path) {
  Weights weights(path);
  const TensorSet* source;
  if (folder_exists(path)) {
    auto checkpoint = std::make_shared<Checkpoint>(Checkpoint::open(path));
    source = &checkpoint->model();
    weights.owner_ = std::move(checkpoint);
  } else {
    auto file = std::make_shared<SafetensorsFile>(path);
    source = file.get();
    weights.owner_ = std::move(file);
  }
  const bool reference =
      std::any_of(source->tensors().begin(), source->tensors().end(),
                  [](const auto& t) { return t.first.starts_with(kReferencePrefix); });
  for (const auto& [full_name, tensor] : source->tensors()) {
    std::string_view name = full_name;
    if (reference && !name.starts_with(kReferencePrefix)) continue;
    if (reference) name.remove_prefix(kReferencePrefix.size());
    if (name.starts_with(kCompiledPrefix)) name.remove_prefix(kCompiledPrefix.size());
    Tensor renamed = tensor;
    renamed.name = name;
    weights.insert(std::move(renamed));
  }
  return weights;
}

void expect_tensors(const TensorSet& got, const std::vector<ExpectedTensor>& want) {
  std::vector<std::string> missing, extra, wrong;
  std::set<std::string> known;
  for (const ExpectedTensor& w : want) {
    known.insert(w.name);
    const auto it = got.tensors().find(w.name);
    if (it == got.tensors().end()) {
      if (!w.optional) missing.push_back(w.name);
    } else if (it->second.shape != w.shape) {
      wrong.push_back(w.name + " " + shape_text(it->second.shape) + " (expected " +
                      shape_text(w.shape) + ")");
    }
  }
  for (const auto& [name, tensor] : got.tensors()) {
    if (!known.contains(name)) extra.push_back(name);
  }
  std::string text = list_text("missing", missing) + list_text("not in this model", extra) +
                     list_text("of another shape", wrong);
  if (text.empty()) return;
  text.resize(text.size() - 2);
  throw environment_error("checkpoint", got.source() + " does not fit this model: " + text,
                          "use the model section of the run that wrote it");
}

}  // namespace heddle
