// Words for what the plugin ABI numbers: status codes, operations, features, reasons, problems.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/abi/heddle_attention.h"

namespace heddle {

// "UNSUPPORTED"; "status 42" for a value that the ABI does not know.
std::string status_name(uint32_t status);
// "forward", "backward", "decode".
std::string op_name(uint32_t op);
// "cpu", "cuda".
std::string device_name(uint32_t type);
// "WINDOW_LEFT, GQA, bit 17"; empty for 0.
std::string feature_names(uint64_t bits);
// {"ALLOCATES", "OWN_THREADS"}.
std::vector<std::string> property_names(uint32_t properties);

// "head_dim=96, needs in{64,128}; set model.n_embd / n_head to 128".
std::string reason_text(const heddle_attention_reason& reason);
// "forward B 2 T 37 S 37 H 4 K 2 D 16 window_left 5".
std::string problem_text(const heddle_attention_problem& problem);

// Text that a plugin wrote, fit for a terminal, a log and JSON: control characters become spaces,
// bytes that are not UTF-8 become '?', and at most max_bytes are kept.
std::string clean_text(std::string_view text, size_t max_bytes = 400);

}  // namespace heddle
