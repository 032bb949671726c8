#include "framework/attention/names.h"

#include <fmt/format.h>

#include <array>
#include <cstring>

namespace heddle {
namespace {

constexpr std::array<const char*, 7> kStatus = {
    "OK", "REFUSED", "INVALID_ARG", "UNSUPPORTED", "OUT_OF_MEMORY", "DEVICE_ERROR", "INTERNAL"};
constexpr std::array<const char*, 7> kFeatures = {"CAUSAL",  "WINDOW_LEFT",   "GQA",   "POS_OFFSET",
                                                  "LSE_OUT", "DETERMINISTIC", "KV_LEN"};
constexpr std::array<const char*, 4> kProperties = {"CTX_CONCURRENT", "ALLOCATES", "OWN_THREADS",
                                                    "NO_LSE"};

// Bytes of the UTF-8 sequence that begins at text[0]; 0 when it is not one.
size_t utf8_sequence(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  size_t n = 0;
  if (lead < 0x80) n = 1;
  if (lead >= 0xc2 && lead <= 0xdf) n = 2;
  if (lead >= 0xe0 && lead <= 0xef) n = 3;
  if (lead >= 0xf0 && lead <= 0xf4) n = 4;
  if (n == 0 || n > text.size()) return 0;
  for (size_t i = 1; i < n; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
  }
  if (n < 3) return n;
  // Overlong forms, surrogates and values beyond U+10FFFF hide in the second byte.
  const auto second = static_cast<unsigned char>(text[1]);
  const bool bad = (lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
                   (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f);
  return bad ? 0 : n;
}

// A char array of the ABI that may lack its NUL.
template <size_t N>
std::string field_text(const char (&field)[N]) {
  return clean_text(std::string_view(field, strnlen(field, N)));
}

}  // namespace

std::string status_name(uint32_t status) {
  return status < kStatus.size() ? kStatus[status] : fmt::format("status {}", status);
}

std::string op_name(uint32_t op) {
  switch (op) {
    case HEDDLE_OP_FORWARD:
      return "forward";
    case HEDDLE_OP_BACKWARD:
      return "backward";
    case HEDDLE_OP_DECODE:
      return "decode";
  }
  return fmt::format("op {}", op);
}

std::string device_name(uint32_t type) {
  switch (type) {
    case HEDDLE_DEVICE_CPU:
      return "cpu";
    case HEDDLE_DEVICE_CUDA:
      return "cuda";
  }
  return fmt::format("device type {}", type);
}

std::string feature_names(uint64_t bits) {
  std::string text;
  for (uint32_t bit = 0; bit < 64; ++bit) {
    if (((bits >> bit) & 1) == 0) continue;
    if (!text.empty()) text += ", ";
    text += bit < kFeatures.size() ? kFeatures[bit] : fmt::format("bit {}", bit);
  }
  return text;
}

std::vector<std::string> property_names(uint32_t properties) {
  std::vector<std::string> names;
  for (uint32_t bit = 0; bit < 32; ++bit) {
    if (((properties >> bit) & 1) == 0) continue;
    names.push_back(bit < kProperties.size() ? kProperties[bit] : fmt::format("bit {}", bit));
  }
  return names;
}

std::string reason_text(const heddle_attention_reason& reason) {
  std::string text = field_text(reason.field);
  if (text.empty()) text = fmt::format("reason {}", reason.code);
  if (const std::string got = field_text(reason.got); !got.empty()) text += "=" + got;
  if (const std::string want = field_text(reason.want); !want.empty()) text += ", needs " + want;
  if (const std::string hint = field_text(reason.hint); !hint.empty()) text += "; " + hint;
  return text;
}

std::string problem_text(const heddle_attention_problem& p) {
  std::string text = fmt::format("{} B {} T {} S {} H {} K {} D {}", op_name(p.op), p.batch,
                                 p.q_len, p.k_len, p.n_head, p.n_kv_head, p.head_dim);
  if (p.window_left >= 0) text += fmt::format(" window_left {}", p.window_left);
  if (p.q_pos0 != 0 || p.k_pos0 != 0)
    text += fmt::format(" q_pos0 {} k_pos0 {}", p.q_pos0, p.k_pos0);
  return text;
}

std::string clean_text(std::string_view text, size_t max_bytes) {
  std::string out;
  while (!text.empty()) {
    const size_t n = utf8_sequence(text);
    if (out.size() + std::max<size_t>(n, 1) > max_bytes) return out + "...";
    const auto c = static_cast<unsigned char>(text[0]);
    if (n == 0) {
      out += '?';
    } else if (c < 0x20 || c == 0x7f) {
      out += ' ';
    } else {
      out.append(text.substr(0, n));
    }
    text.remove_prefix(std::max<size_t>(n, 1));
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

}  // namespace heddle
