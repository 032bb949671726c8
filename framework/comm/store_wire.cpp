#include "framework/comm/store_wire.h"

#include <fmt/format.h>

#include <algorithm>

namespace heddle {

StoreError::StoreError(Kind kind, std::string message, std::string remedy)
    : Error(ExitCode::kCommunication, "comm", std::move(message), std::move(remedy)), kind_(kind) {}

std::string to_string(const Endpoint& endpoint) {
  if (endpoint.host.find(':') == std::string::npos) {
    return fmt::format("{}:{}", endpoint.host, endpoint.port);
  }
  return fmt::format("[{}]:{}", endpoint.host, endpoint.port);
}

namespace store_wire {

void Writer::number(uint64_t v, int bytes) {
  for (int i = 0; i < bytes; ++i) u8(static_cast<uint8_t>(v >> (8 * i)));
}

void Writer::patch_length(size_t at) {
  const uint64_t length = bytes_.size() - at - 4;
  for (int i = 0; i < 4; ++i) bytes_[at + i] = static_cast<char>(length >> (8 * i));
}

uint64_t Reader::number(size_t bytes) {
  if (!ok_ || rest_.size() < bytes) {
    ok_ = false;
    return 0;
  }
  uint64_t v = 0;
  for (size_t i = 0; i < bytes; ++i) {
    v |= static_cast<uint64_t>(static_cast<unsigned char>(rest_[i])) << (8 * i);
  }
  rest_.remove_prefix(bytes);
  return v;
}

std::string_view Reader::string() {
  const uint32_t length = u32();
  if (!ok_ || rest_.size() < length) {
    ok_ = false;
    return {};
  }
  const std::string_view text = rest_.substr(0, length);
  rest_.remove_prefix(length);
  return text;
}

namespace {

void begin(Writer* w) {
  w->raw(kMagic);
  w->u32(kProtocolVersion);
  w->u32(0);
}

constexpr size_t kLengthAt = kMagic.size() + 4;

}  // namespace

std::string encode_hello(const Hello& hello) {
  Writer w;
  begin(&w);
  w.string(hello.identity.job_id);
  w.i64(hello.identity.restart_count);
  w.i64(hello.identity.world_size);
  w.i64(hello.identity.rank);
  w.string(hello.identity.token);
  w.u64(hello.instance);
  w.patch_length(kLengthAt);
  return w.take();
}

std::string encode_answer(Verdict verdict, std::string_view reason) {
  Writer w;
  begin(&w);
  w.u8(static_cast<uint8_t>(verdict));
  w.string(reason);
  w.patch_length(kLengthAt);
  return w.take();
}

Preamble decode_preamble(std::string_view bytes) {
  Preamble p;
  p.ours = bytes.substr(0, kMagic.size()) == kMagic;
  Reader r(bytes.substr(kMagic.size()));
  p.version = r.u32();
  p.length = r.u32();
  return p;
}

bool decode_hello(std::string_view body, Hello* hello) {
  Reader r(body);
  hello->identity.job_id = r.string();
  hello->identity.restart_count = r.i64();
  const int64_t world_size = r.i64();
  const int64_t rank = r.i64();
  hello->identity.token = r.string();
  hello->instance = r.u64();
  constexpr int64_t kMax = 1 << 30;
  hello->identity.world_size = static_cast<int>(std::clamp<int64_t>(world_size, -1, kMax));
  hello->identity.rank = static_cast<int>(std::clamp<int64_t>(rank, -1, kMax));
  return r.done();
}

bool decode_answer(std::string_view body, Verdict* verdict, std::string* reason) {
  Reader r(body);
  *verdict = static_cast<Verdict>(r.u8());
  *reason = r.string();
  return r.done() && *verdict <= Verdict::kMalformed;
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  volatile unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = difference | static_cast<unsigned char>(a[i] ^ b[i]);
  }
  return difference == 0;
}

std::string printable(std::string_view text, size_t max) {
  std::string out;
  for (const char c : text.substr(0, max)) out += c >= 0x20 && c < 0x7f ? c : '?';
  if (text.size() > max) out += "...";
  return out;
}

}  // namespace store_wire
}  // namespace heddle
