#include "framework/attention/plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "framework/attention/fp_control.h"
#include "framework/attention/library_file.h"
#include "framework/attention/names.h"
#include "framework/attention/negotiation.h"
#include "framework/attention/services.h"
#include "framework/core/crc32c.h"
#include "framework/core/error.h"
#include "framework/core/file.h"
#include "framework/core/parallel_for.h"
#include "framework/core/version.h"

namespace heddle {
namespace {

constexpr uint32_t kNewestImaginableMajor = 9;
constexpr uint64_t kMaxWorkspaceAlign = 4096;

// A caller-owned message buffer on the stack.
struct TextBuffer {
  std::array<char, 512> bytes{};
  heddle_text text{bytes.data(), static_cast<uint32_t>(bytes.size()), 0};
  std::string str() const { return clean_text(std::string_view(bytes.data(), length())); }
  size_t length() const { return strnlen(bytes.data(), bytes.size()); }
};

void enter(const PluginStage& stage, const std::string& what) {
  if (stage) stage(what);
}

std::string quoted(const std::string& text) {
  return text.empty() ? std::string(" without a text") : ": " + text;
}

// The loader's complaint, without the path of the plugin that leads it, and what to do about it.
[[noreturn]] void refuse_unloadable(const std::string& path, std::string_view complaint) {
  const std::string lead = path + ": ";
  if (complaint.starts_with(lead)) complaint.remove_prefix(lead.size());
  const size_t missing = complaint.find(": cannot open shared object file");
  if (missing != std::string_view::npos) {
    const std::string_view library = complaint.substr(0, missing);
    throw plugin_error(fmt::format("needs the library {}, which is not found", library),
                       fmt::format("install {} or add its folder to LD_LIBRARY_PATH", library));
  }
  constexpr std::string_view kSymbol = "undefined symbol: ";
  if (const size_t at = complaint.find(kSymbol); at != std::string_view::npos) {
    throw plugin_error(
        fmt::format("needs the symbol {}, which nothing defines",
                    clean_text(complaint.substr(at + kSymbol.size()))),
        "link it with the library that defines it; -Wl,-z,defs finds this when it is built");
  }
  throw plugin_error(fmt::format("cannot be loaded: {}", clean_text(complaint)),
                     "check how it was built with ldd");
}

heddle_attention_entry_v1 find_entry(void* handle) {
  if (void* entry = dlsym(handle, HEDDLE_ATTENTION_ENTRY); entry != nullptr) {
    return reinterpret_cast<heddle_attention_entry_v1>(entry);
  }
  for (uint32_t major = HEDDLE_ATTENTION_ABI_MAJOR + 1; major <= kNewestImaginableMajor; ++major) {
    if (dlsym(handle, fmt::format("heddle_attention_plugin_v{}", major).c_str()) == nullptr)
      continue;
    throw plugin_error(
        fmt::format(
            "exports heddle_attention_plugin_v{} but not {}: it was built for ABI major {}, "
            "and heddle {} speaks major {}",
            major, HEDDLE_ATTENTION_ENTRY, major, kVersion, HEDDLE_ATTENTION_ABI_MAJOR),
        "build it for the heddle_attention.h of this heddle or use a newer heddle");
  }
  throw plugin_error(
      fmt::format("does not export {}: not a Heddle attention plugin", HEDDLE_ATTENTION_ENTRY),
      "export it as extern \"C\" with HEDDLE_EXPORT");
}

uint32_t file_checksum(const std::string& path) {
  const MappedFile file(path);
  return crc32c(file.data(), file.size());
}

}  // namespace

PluginLibrary& PluginLibrary::load(const std::string& path, const PluginStage& stage) {
  struct Entry {
    std::unique_ptr<PluginLibrary> library;
    std::optional<Error> failure;
  };
  static std::mutex mutex;
  // Never destroyed: plugins may be used until the last instruction of the process.
  static auto& loaded = *new std::map<std::string, Entry>;

  const std::lock_guard lock(mutex);
  auto [it, is_new] = loaded.try_emplace(path);
  Entry& entry = it->second;
  if (is_new) {
    try {
      entry.library.reset(new PluginLibrary(path, stage));
    } catch (const Error& error) {
      entry.failure = error;
    }
  }
  if (entry.failure) throw Error(*entry.failure);
  return *entry.library;
}

PluginLibrary::PluginLibrary(std::string path, const PluginStage& stage)
    : path_(std::move(path)), label_(std::filesystem::path(path_).stem().string()) {
  host_ = make_host_services(&label_);
  open(stage);
}

void PluginLibrary::open(const PluginStage& stage) {
  check_library_file(path_);
  const FpControlGuard mode;
  enter(stage, "its static constructors");
  void* handle = dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* complaint = dlerror();
    refuse_unloadable(path_, complaint != nullptr ? complaint : "no reason given");
  }
  mode.check("being loaded");
  const heddle_attention_entry_v1 entry = find_entry(handle);
  enter(stage, HEDDLE_ATTENTION_ENTRY);
  TextBuffer err;
  const heddle_attention_plugin* table = entry(&host_, &err.text);
  mode.check(HEDDLE_ATTENTION_ENTRY);
  if (table == nullptr) {
    throw plugin_error("refuses this machine" + quoted(err.str()), "choose another backend");
  }
  check_plugin_table(table);
  table_ = table;
  checksum_ = file_checksum(path_);
}

std::string PluginLibrary::version() const {
  return clean_text(table_->version, 64);
}
std::string PluginLibrary::description() const {
  return clean_text(table_->description);
}

PluginContext::PluginContext(PluginLibrary& library, const heddle_device& device)
    : library_(&library) {
  const heddle_attention_plugin& table = library.table();
  if (table.device_type != device.type) {
    throw plugin_error(fmt::format("serves {}, but the run is on {}",
                                   device_name(table.device_type), device_name(device.type)),
                       "choose another attention.backend");
  }
  TextBuffer err;
  const uint32_t status = table.create(&library.host(), &device, &ctx_, &err.text);
  if (status == HEDDLE_REFUSED) {
    throw plugin_error("refuses this " + device_name(device.type) + quoted(err.str()),
                       "choose another attention.backend");
  }
  if (status != HEDDLE_OK) {
    throw plugin_error(
        fmt::format("create() failed with {}{}", status_name(status), quoted(err.str())),
        "choose another attention.backend");
  }
}

PluginContext::~PluginContext() {
  library_->table().destroy(ctx_);
}

namespace {

// A refusal on the plugin's behalf; empty when it may be asked.
std::string host_screen(const heddle_attention_plugin& table,
                        const heddle_attention_problem& problem) {
  const bool offered = (problem.op == HEDDLE_OP_FORWARD && table.forward != nullptr) ||
                       (problem.op == HEDDLE_OP_BACKWARD && table.backward != nullptr) ||
                       (problem.op == HEDDLE_OP_DECODE && table.decode != nullptr);
  if (!offered) return fmt::format("op={}, which it does not offer", op_name(problem.op));
  const uint64_t unknown =
      problem.required_features & HEDDLE_FEATURE_MUST_UNDERSTAND & ~table.known_features;
  if (unknown == 0) return {};
  return fmt::format(
      "required_features={}, which it does not know; choose another backend, or "
      "handle the fields behind it and declare the bit in known_features",
      feature_names(unknown));
}

void check_answer(const heddle_attention_verdict& verdict,
                  const heddle_attention_problem& problem) {
  const auto broken = [&](const std::string& what) {
    throw plugin_error(fmt::format("query({}) {}", problem_text(problem), what),
                       "report this to the plugin's author");
  };
  if (verdict.supported > 1) broken(fmt::format("set supported to {}", verdict.supported));
  if (verdict.supported == 0 && verdict.reason_count == 0) broken("said no without a reason");
  const uint64_t align = verdict.workspace_align;
  if ((align & (align - 1)) != 0 || align > kMaxWorkspaceAlign) {
    broken(fmt::format("asked for a workspace alignment of {}", align));
  }
  if (problem.max_workspace != 0 && verdict.supported == 1 &&
      verdict.workspace_bytes > problem.max_workspace) {
    broken(fmt::format("asked for {} bytes of workspace where {} are allowed",
                       verdict.workspace_bytes, problem.max_workspace));
  }
}

}  // namespace

QueryAnswer PluginContext::query(const heddle_attention_problem& problem) const {
  QueryAnswer answer;
  answer.refusal = host_screen(library_->table(), problem);
  if (!answer.refusal.empty()) return answer;

  std::array<heddle_attention_reason, 8> reasons{};
  heddle_attention_verdict verdict{};
  verdict.struct_size = sizeof verdict;
  verdict.reason_capacity = static_cast<uint32_t>(reasons.size());
  verdict.reasons = reasons.data();
  const uint32_t status = library_->table().query(ctx_, &problem, &verdict);
  if (status != HEDDLE_OK) {
    throw plugin_error(
        fmt::format("query({}) failed with {}", problem_text(problem), status_name(status)),
        "report this to the plugin's author");
  }
  check_answer(verdict, problem);
  answer.supported = verdict.supported == 1;
  answer.workspace_bytes = verdict.workspace_bytes;
  if (verdict.workspace_align != 0) answer.workspace_align = verdict.workspace_align;
  if (std::isfinite(verdict.est_time_us) && verdict.est_time_us > 0) {
    answer.est_time_us = verdict.est_time_us;
  }
  answer.kernel = clean_text(std::string_view(verdict.kernel, strnlen(verdict.kernel, 64)));
  if (answer.supported) return answer;
  for (uint32_t i = 0; i < verdict.reason_count && i < reasons.size(); ++i) {
    answer.refusal += (i > 0 ? " / " : "") + reason_text(reasons[i]);
  }
  return answer;
}

QueryAnswer PluginContext::query_preferring_determinism(heddle_attention_problem& problem) const {
  QueryAnswer answer = query(problem);
  if (answer.supported || (problem.flags & HEDDLE_FLAG_DETERMINISTIC) == 0) return answer;
  heddle_attention_problem relaxed = problem;
  relaxed.flags &= ~HEDDLE_FLAG_DETERMINISTIC;
  relaxed.required_features = heddle_attention_required_features(&relaxed);
  QueryAnswer second = query(relaxed);
  if (!second.supported) return answer;
  problem = relaxed;
  return second;
}

heddle_device cpu_plugin_device() {
  heddle_device device{};
  device.struct_size = sizeof device;
  device.type = HEDDLE_DEVICE_CPU;
  device.units = static_cast<uint32_t>(num_threads());
  return device;
}

}  // namespace heddle
