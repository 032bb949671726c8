// Bytes on the wire between StoreClient and StoreServer. Little-endian.
//
//   hello, client to server:    magic[8] u32 version, u32 length, then Hello
//   answer, server to client:   magic[8] u32 version, u32 length, then HelloAnswer
//   request, client to server:  u32 length, then u32 id, u8 op, operands
//   reply, server to client:    u32 length, then u32 id, u8 status, results
//
// Strings are u32 length and bytes. Replies carry the id of their request and may overtake each
// other. The layout of hello and answer stays the same in later versions, so that both sides can
// name the disagreement.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "framework/comm/store.h"

namespace heddle::store_wire {

inline constexpr std::string_view kMagic = "HEDDLEST";
inline constexpr uint32_t kProtocolVersion = 1;
inline constexpr size_t kPreambleBytes = 16;
inline constexpr size_t kMaxHelloBytes = 4096;

enum class Op : uint8_t {
  kSet = 1,         // key, value
  kGet = 2,         // key
  kWait = 3,        // u64 milliseconds, u32 n, n keys
  kAdd = 4,         // key, i64
  kCompareSet = 5,  // key, u8 has expected, expected, value
  kScan = 6,        // prefix
  kErase = 7,       // key
  kMembers = 8,     //
  kLeave = 9,       //
};

enum class Status : uint8_t {
  kOk = 0,
  kMissing = 1,  // kGet: no such key; kWait: u32 n, n keys that did not appear
  kRefused = 2,  // reason
  kLimit = 3,    // reason
};

enum class Verdict : uint8_t {
  kWelcome = 0,
  kToken = 1,
  kOtherVersion = 2,
  kOtherJob = 3,
  kStalePeer = 4,    // the peer's restart count is below the store's
  kStaleServer = 5,  // the other way round: this store is about to end
  kWorldSize = 6,
  kRank = 7,
  kDuplicate = 8,
  kMalformed = 9,
};

class Writer {
 public:
  void u8(uint8_t v) { bytes_.push_back(static_cast<char>(v)); }
  void u32(uint32_t v) { number(v, 4); }
  void u64(uint64_t v) { number(v, 8); }
  void i64(int64_t v) { number(static_cast<uint64_t>(v), 8); }
  void string(std::string_view v) {
    u32(static_cast<uint32_t>(v.size()));
    bytes_.append(v);
  }
  void raw(std::string_view v) { bytes_.append(v); }
  size_t size() const { return bytes_.size(); }
  std::string take() { return std::move(bytes_); }
  // Writes the number of bytes after `at + 4` to `at`.
  void patch_length(size_t at);

 private:
  void number(uint64_t v, int bytes);
  std::string bytes_;
};

// Reads what is there; past the end or after a bad length every value is empty and ok() is false.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  uint8_t u8() { return static_cast<uint8_t>(number(1)); }
  uint32_t u32() { return static_cast<uint32_t>(number(4)); }
  uint64_t u64() { return number(8); }
  int64_t i64() { return static_cast<int64_t>(number(8)); }
  std::string_view string();
  bool ok() const { return ok_; }
  bool done() const { return ok_ && rest_.empty(); }
  size_t left() const { return rest_.size(); }

 private:
  uint64_t number(size_t bytes);
  std::string_view rest_;
  bool ok_ = true;
};

struct Hello {
  StoreIdentity identity;
  uint64_t instance = 0;  // random, one per client: tells a second try from a second process
};

// With preamble.
std::string encode_hello(const Hello& hello);
std::string encode_answer(Verdict verdict, std::string_view reason);

struct Preamble {
  bool ours = false;  // the magic is right
  uint32_t version = 0;
  uint32_t length = 0;
};
Preamble decode_preamble(std::string_view bytes);
// False: malformed.
bool decode_hello(std::string_view body, Hello* hello);
bool decode_answer(std::string_view body, Verdict* verdict, std::string* reason);

// Time does not depend on where they differ, only on the lengths.
bool equal_in_constant_time(std::string_view a, std::string_view b);
// For messages: other people's bytes, shortened, without control characters.
std::string printable(std::string_view text, size_t max = 80);

}  // namespace heddle::store_wire
