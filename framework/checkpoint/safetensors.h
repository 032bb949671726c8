// The safetensors format (huggingface/safetensors, README "Format"): u64 little-endian header size,
// a JSON header name -> {dtype, shape, data_offsets}, then one buffer of row-major little-endian
// tensors without holes. Reading maps the file; writing streams through core's FileSystem.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/core/buffer.h"
#include "framework/core/dtype.h"
#include "framework/core/file.h"
#include "framework/core/json.h"

namespace heddle {

// "[320, 64]", for messages.
std::string shape_text(const std::vector<int64_t>& shape);

// A tensor somebody else keeps alive: a file that is mapped, or a trainer's buffer.
struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::kF32;
  const void* data = nullptr;
};

// Tensors by name, and where they came from for messages.
class TensorSet {
 public:
  struct Tensor {
    std::string name;
    std::string file;  // for messages
    DType dtype = DType::kF32;
    std::vector<int64_t> shape;
    const void* data = nullptr;  // aligned to its element
    size_t bytes = 0;

    int64_t numel() const { return static_cast<int64_t>(bytes / dtype_size(dtype)); }
    // The values in place. Throws unless dtype is F32.
    const float* f32() const;
    // A copy as fp32 of an F32, F16, BF16 or F64 tensor (F64 is rounded). Throws for integers.
    std::vector<float> to_f32() const;
    // Throws, naming both shapes, unless they are equal.
    void expect_shape(const std::vector<int64_t>& want) const;
  };

  explicit TensorSet(std::string source) : source_(std::move(source)) {}

  const std::string& source() const { return source_; }
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  bool contains(const std::string& name) const { return tensors_.contains(name); }
  // Throws when there is no such tensor, naming the nearest one that exists.
  const Tensor& tensor(const std::string& name) const;

  // Throws when a name is taken already.
  void insert(Tensor tensor);

 private:
  std::string source_;  // a file or a checkpoint folder
  std::map<std::string, Tensor> tensors_;
};

// A file opened for reading, checked in full before the constructor returns: header bounds, JSON,
// duplicate names, dtypes, shapes against byte ranges, and that the ranges tile the buffer. Throws
// heddle::Error (environment) naming file, tensor, what was got and what was expected. The tensors'
// data live as long as the file object.
class SafetensorsFile : public TensorSet {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return source(); }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  struct Entry {
    Tensor tensor;
    size_t begin;  // byte offset in the buffer
  };
  std::vector<Entry> parse_header(std::string_view text, size_t buffer_bytes);
  Entry parse_entry(const std::string& name, const json::object& fields, size_t buffer_bytes) const;
  void check_tiling(std::vector<Entry>& entries, size_t buffer_bytes) const;
  void place(Entry& entry, const unsigned char* buffer);
  [[noreturn]] void refuse(const std::string& what) const;

  MappedFile file_;
  std::map<std::string, std::string> metadata_;
  std::vector<HostBuffer> aligned_copies_;  // tensors that the file stores off their alignment
};

// Collects tensors, then writes them in one pass: elements of larger size first, then by name;
// header padded with spaces so that the buffer starts at a multiple of 8.
class SafetensorsWriter {
 public:
  struct Written {
    uint64_t bytes = 0;   // of the file
    uint32_t crc32c = 0;  // of the file
    std::map<std::string, uint32_t> tensor_crc32c;
  };

  // `data` must stay valid until write() has returned. Names must be new and not "__metadata__".
  void add(const NamedTensor& tensor);
  void set_metadata(const std::string& key, const std::string& value) { metadata_[key] = value; }

  // Creates `path` through file_system() and makes it durable.
  Written write(const std::string& path) const;

 private:
  struct Item {
    NamedTensor tensor;
    size_t bytes;
  };
  std::string header(const std::vector<const Item*>& order) const;

  std::map<std::string, Item> items_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace heddle
