// One call of a plugin with everything watched but the numbers: buffers between guard pages,
// poisoned results and workspace, gaps that must keep their bytes, inputs that must not change.
#pragma once

#include <functional>
#include <string>

#include "plugins/conformance/arrays.h"
#include "plugins/conformance/session.h"

namespace heddle::conformance {

struct CallOptions {
  heddle_attention_ctx* ctx = nullptr;  // null: the session's for the case's workers
  uint64_t max_workspace = 0;
  // When given and as large as the workspace: what it holds before, and gets what it holds after.
  std::vector<std::byte>* workspace = nullptr;
  // Run directly around the plugin's function, on its thread.
  std::function<void()> before, after;
};

struct CallResult {
  std::string refusal;  // query() said no: nothing ran
  std::string trouble;  // what is wrong besides the numbers; empty: nothing
  Answer answer;
  Arrays got;  // out and lse, or dq, dk, dv; also with trouble, as far as it came

  bool ran() const { return refusal.empty() && trouble.empty(); }
};

// `inputs` holds q, k, v and, for BACKWARD, dout, out and lse.
CallResult call_plugin(Session& session, const Case& c, const Arrays& inputs,
                       const CallOptions& options = {});

}  // namespace heddle::conformance
