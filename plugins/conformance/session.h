// A plugin in this process, as the rules talk to it: contexts on the suite's hosts, its query(),
// and what it can do at all.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plugins/abi/heddle_attention.h"
#include "plugins/conformance/case.h"
#include "plugins/conformance/host.h"
#include "plugins/conformance/layout.h"
#include "plugins/conformance/target.h"

namespace heddle::conformance {

struct Reason {
  uint32_t code = 0;
  std::string field, got, want, hint;
};
std::string describe(const Reason& reason);

// What query() said, or what was refused on the plugin's behalf.
struct Answer {
  bool supported = false;
  bool asked = true;  // false: refused on its behalf (no such function, unknown feature)
  std::string kernel;
  uint64_t workspace_bytes = 0, workspace_align = 64;
  uint32_t reason_count = 0;
  std::vector<Reason> reasons;
  std::string violation;  // how the answer breaks the header; empty: it does not

  std::string refusal() const;
};

// What of a case may be replaced by what the plugin can do.
enum class Adapt { kAll, kAllButHeadDim, kNothing };

class Session {
 public:
  // Told the spec of every case before the plugin runs it.
  using Progress = std::function<void(const std::string&)>;

  // `table` has passed negotiation: sizes, magic and required functions are right. only_dtype:
  // cases take this data type where the plugin accepts it; 0: what it accepts, fp32 first.
  explicit Session(const heddle_attention_plugin& table, Progress progress = {},
                   const Target& target = host_target(), uint32_t only_dtype = 0);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  const heddle_attention_plugin& table() const { return *table_; }
  bool has(uint32_t property) const { return (table_->properties & property) != 0; }
  bool offers(uint32_t op) const;
  const Target& target() const { return target_; }
  Memory& memory() const { return *target_.memory; }
  // The case's problem on this device.
  heddle_attention_problem problem(const Case& c) const { return problem(c, lay_out(c)); }
  heddle_attention_problem problem(const Case& c, const CallLayout& layout) const;
  // The device failed: nothing that follows in this process means anything.
  bool lost() const { return lost_; }
  void lose() { lost_ = true; }
  void progress(const std::string& spec) const {
    if (progress_) progress_(spec);
  }

  // The host and the context for a number of workers. Contexts are made on first use, the one for
  // most workers at construction. Throws std::runtime_error with the plugin's text if it refuses.
  Host& host(int64_t workers);
  heddle_attention_ctx* context(int64_t workers);
  // A further context on that host, for rules about several; the caller destroys it.
  heddle_attention_ctx* new_context(int64_t workers);

  Answer query(const heddle_attention_problem& problem, uint32_t capacity = 8) const;

  // The case with what the plugin cannot do at all replaced by the nearest that it can: data type,
  // alignment, lse, head_dim. Left alone where nothing helps.
  Case adapted(Case c, Adapt adapt = Adapt::kAll) const;
  const std::vector<uint32_t>& dtypes() const { return dtypes_; }

 private:
  bool accepts(const Case& c) const;
  void explore();

  const heddle_attention_plugin* table_;
  Progress progress_;
  Target target_;
  uint32_t only_dtype_;
  std::atomic<bool> lost_{false};
  std::array<std::unique_ptr<Host>, kMostWorkers + 1> hosts_;
  std::array<heddle_attention_ctx*, kMostWorkers + 1> contexts_{};
  std::vector<uint32_t> dtypes_;
  std::vector<int64_t> head_dims_;  // of a ladder
  uint32_t align_ = 4;
  bool lse_ = true;
};

}  // namespace heddle::conformance
