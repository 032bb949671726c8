#include "framework/attention/bound.h"

#include <fmt/format.h>

#include <cstring>

#include "framework/attention/names.h"
#include "framework/core/buffer.h"
#include "framework/core/error.h"

namespace heddle {

Binding::Binding(const PluginContext& context, Device& device,
                 const heddle_attention_problem& asked, const heddle_attention_problem& problem,
                 const QueryAnswer& answer)
    : context_(context),
      device_(device),
      asked_(asked),
      problem_(problem),
      answer_(answer),
      backend_(context.library().name()),
      workspace_bytes_(answer.workspace_bytes) {
  // Callers align to kBufferAlign; run() moves on to the plugin's own alignment inside the slack.
  if (workspace_bytes_ > 0 && answer.workspace_align > kBufferAlign) {
    workspace_bytes_ += answer.workspace_align - kBufferAlign;
  }
}

bool Binding::answers(const heddle_attention_problem& asked) const {
  return std::memcmp(&asked, &asked_, sizeof asked) == 0;  // the ABI's structs have no padding
}

void Binding::run(const heddle_attention_call& caller) {
  heddle_attention_call call = caller;
  heddle_text err{text_.data(), static_cast<uint32_t>(text_.size()), 0};
  text_[0] = '\0';
  call.struct_size = sizeof call;
  call.reserved0 = 0;
  call.stream = device_.stream();
  call.err = &err;
  check_pointers(call);
  const auto address = reinterpret_cast<uintptr_t>(call.workspace);
  const uintptr_t aligned =
      (address + answer_.workspace_align - 1) & ~(answer_.workspace_align - 1);
  call.workspace = reinterpret_cast<void*>(aligned);
  call.workspace_bytes = answer_.workspace_bytes;
  const uint32_t status = context_.run(problem_, call);
  if (status != HEDDLE_OK) fail(status);
}

void Binding::check_pointers(const heddle_attention_call& c) const {
  uintptr_t all = 0;
  for (const void* p :
       {c.q, c.k, c.v, static_cast<const void*>(c.out), static_cast<const void*>(c.lse), c.dout,
        static_cast<const void*>(c.dq), static_cast<const void*>(c.dk),
        static_cast<const void*>(c.dv), static_cast<const void*>(c.kv_len)}) {
    all |= reinterpret_cast<uintptr_t>(p);
  }
  HEDDLE_CHECK((all & (problem_.align_bytes - 1)) == 0,
               fmt::format("a pointer of {} is not aligned to {} bytes", problem_text(problem_),
                           problem_.align_bytes));
  HEDDLE_CHECK(
      workspace_bytes_ == 0 || (c.workspace != nullptr && c.workspace_bytes >= workspace_bytes_ &&
                                reinterpret_cast<uintptr_t>(c.workspace) % kBufferAlign == 0),
      fmt::format("{} needs {} bytes of workspace aligned to {}, got {}", problem_text(problem_),
                  workspace_bytes_, kBufferAlign, c.workspace_bytes));
}

void Binding::fail(uint32_t status) const {
  const std::string text =
      clean_text(std::string_view(text_.data(), strnlen(text_.data(), text_.size())));
  throw plugin_error(
      fmt::format("attention backend '{}' {} broke its promise: query said yes (kernel {}), but {} "
                  "returned {}{}{}",
                  backend_, context_.library().version(), answer_.kernel, problem_text(problem_),
                  status_name(status), text.empty() ? "" : ": ", text),
      "choose another attention.backend and report this to the plugin's author");
}

}  // namespace heddle
