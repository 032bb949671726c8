// Where the tensors of a call live. The suite prepares images on the host and moves them with
// this interface, so that memory of a device needs one more class and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "plugins/conformance/case.h"

namespace heddle::conformance {

// One buffer between two inaccessible pages; on a device, at one end of an allocation. Bytes of its
// pages that are not the buffer's own hold kBand and must keep it.
struct Block {
  void* data = nullptr;  // what the plugin gets
  size_t bytes = 0;
  void* pages = nullptr;
  size_t pages_bytes = 0;
};

inline constexpr unsigned char kBand = 0xdb;

class Memory {
 public:
  virtual ~Memory() = default;
  // A buffer whose end (or start) touches an inaccessible page as closely as `align` allows.
  // `label` names it in fault messages and must live as long as the buffer.
  virtual Block allocate(size_t bytes, size_t align, Edge edge, const char* label) = 0;
  virtual void release(const Block& block) = 0;
  virtual void upload(const Block& block, const void* source) = 0;
  virtual void download(const Block& block, void* target) = 0;
  // Distance from the buffer of the nearest byte outside it that was written: >= 0 counts from its
  // end, < 0 from its start. False when all are intact.
  virtual bool overrun(const Block& block, int64_t* offset) = 0;
  // Waits for what calls enqueued. Empty, or why they failed: the device then is of no more use to
  // this process.
  virtual std::string finish() = 0;
};

// Host memory from mmap with PROT_NONE pages on both sides.
Memory& host_memory();

// "4 bytes past the end of the workspace" when the address lies in a guard page of a live host
// buffer, else empty. Async-signal-safe but for the string; call it outside of the handler.
std::string guard_hit(const void* address);

}  // namespace heddle::conformance
