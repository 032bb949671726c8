#include "framework/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include "framework/core/crc32c.h"
#include "framework/core/error.h"
#include "framework/core/json.h"

namespace heddle {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are read in place");

constexpr uint64_t kMaxHeader = 100'000'000;
constexpr size_t kPrefix = 8;
constexpr DType kDTypes[] = {DType::kF64, DType::kI64,  DType::kF32, DType::kI32,
                             DType::kF16, DType::kBF16, DType::kU8};

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DType t : kDTypes) {
    if (dtype_name(t) == name) return t;
  }
  return std::nullopt;
}

// Bytes of a tensor; nothing when a dimension is negative or the product does not fit.
std::optional<size_t> tensor_bytes(DType dtype, const std::vector<int64_t>& shape) {
  size_t bytes = dtype_size(dtype);
  for (const int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(bytes, static_cast<size_t>(dim), &bytes)) return {};
  }
  return bytes;
}

std::optional<uint64_t> as_size(const json::value& v) {
  if (const auto* i = v.if_int64(); i != nullptr && *i >= 0) return static_cast<uint64_t>(*i);
  if (const auto* u = v.if_uint64()) return *u;
  return std::nullopt;
}

float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  uint32_t exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu;
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1.0p-24f;
    return sign != 0 ? -value : value;
  }
  exponent = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | exponent << 23 | mantissa << 13);
}

float bfloat_to_float(uint16_t b) {
  return std::bit_cast<float>(static_cast<uint32_t>(b) << 16);
}

size_t common_prefix(std::string_view a, std::string_view b) {
  const auto [x, y] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<size_t>(x - a.begin());
}

}  // namespace

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return text + "]";
}

const float* TensorSet::Tensor::f32() const {
  if (dtype != DType::kF32) {
    throw environment_error("safetensors", file + ": tensor " + name + " is " +
                                               std::string(dtype_name(dtype)) + ", expected F32");
  }
  return static_cast<const float*>(data);
}

std::vector<float> TensorSet::Tensor::to_f32() const {
  std::vector<float> out(static_cast<size_t>(numel()));
  const auto convert = [&](auto zero, auto&& to_float) {
    const auto* p = static_cast<const decltype(zero)*>(data);
    for (size_t i = 0; i < out.size(); ++i) out[i] = to_float(p[i]);
  };
  switch (dtype) {
    case DType::kF32:
      convert(0.0f, [](float x) { return x; });
      return out;
    case DType::kF64:
      convert(0.0, [](double x) { return static_cast<float>(x); });
      return out;
    case DType::kF16:
      convert(uint16_t{0}, half_to_float);
      return out;
    case DType::kBF16:
      convert(uint16_t{0}, bfloat_to_float);
      return out;
    default:
      throw environment_error("safetensors", file + ": tensor " + name + " is " +
                                                 std::string(dtype_name(dtype)) +
                                                 ", expected F32, F16, BF16 or F64");
  }
}

void TensorSet::Tensor::expect_shape(const std::vector<int64_t>& want) const {
  if (shape == want) return;
  throw environment_error("safetensors", file + ": tensor " + name + " has shape " +
                                             shape_text(shape) + ", expected " + shape_text(want));
}

const TensorSet::Tensor& TensorSet::tensor(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it != tensors_.end()) return it->second;
  const std::string* nearest = nullptr;
  size_t best = 0;
  for (const auto& [other, t] : tensors_) {
    const size_t shared = common_prefix(name, other);
    if (nearest == nullptr || shared > best) nearest = &other, best = shared;
  }
  throw environment_error(
      "safetensors",
      source_ + " has no tensor " + name + " among its " + std::to_string(tensors_.size()),
      nearest != nullptr ? "the nearest name is " + *nearest : "");
}

void TensorSet::insert(Tensor tensor) {
  const auto [it, is_new] = tensors_.emplace(tensor.name, tensor);
  if (is_new) return;
  throw environment_error("safetensors", source_ + " has the tensor " + tensor.name +
                                             " twice: in " + it->second.file + " and in " +
                                             tensor.file);
}

SafetensorsFile::SafetensorsFile(const std::string& path) : TensorSet(path), file_(path) {
  if (file_.size() < kPrefix) {
    refuse("holds " + std::to_string(file_.size()) + " bytes, expected at least 8");
  }
  uint64_t header_bytes;
  std::memcpy(&header_bytes, file_.data(), kPrefix);
  if (header_bytes > kMaxHeader) {
    refuse("says that its header has " + std::to_string(header_bytes) +
           " bytes, expected at most " + std::to_string(kMaxHeader));
  }
  if (header_bytes > file_.size() - kPrefix) {
    refuse("is cut off: the header should have " + std::to_string(header_bytes) +
           " bytes, the file has " + std::to_string(file_.size() - kPrefix) + " after the size");
  }
  const std::string_view text = file_.text().substr(kPrefix, header_bytes);
  if (text.empty() || text.front() != '{') refuse("has a header that does not start with {");
  const size_t buffer_bytes = file_.size() - kPrefix - header_bytes;
  std::vector<Entry> entries = parse_header(text, buffer_bytes);
  check_tiling(entries, buffer_bytes);
  for (Entry& entry : entries) place(entry, file_.data() + kPrefix + header_bytes);
}

void SafetensorsFile::refuse(const std::string& what) const {
  throw environment_error(
      "safetensors", path() + " " + what,
      "the file is damaged or not a safetensors file; fetch or export it again");
}

std::vector<SafetensorsFile::Entry> SafetensorsFile::parse_header(std::string_view text,
                                                                  size_t buffer_bytes) {
  json::value header;
  try {
    header = json::parse_strict(text);
  } catch (const std::exception& e) {
    refuse(std::string("has a header that is not valid: ") + e.what());
  }
  std::vector<Entry> entries;
  for (const auto& [key, entry] : header.as_object()) {
    const std::string name(key);
    const json::object* fields = entry.if_object();
    if (fields == nullptr) refuse("describes " + name + " by something other than an object");
    if (name != "__metadata__") {
      entries.push_back(parse_entry(name, *fields, buffer_bytes));
      continue;
    }
    for (const auto& [k, v] : *fields) {
      if (!v.is_string()) refuse("has metadata " + std::string(k) + " that is not a string");
      metadata_[std::string(k)] = std::string(v.as_string());
    }
  }
  return entries;
}

SafetensorsFile::Entry SafetensorsFile::parse_entry(const std::string& name,
                                                    const json::object& fields,
                                                    size_t buffer_bytes) const {
  const std::string of = " of tensor " + name;
  const json::value* dtype = fields.if_contains("dtype");
  const json::value* shape = fields.if_contains("shape");
  const json::value* offsets = fields.if_contains("data_offsets");
  if (dtype == nullptr || !dtype->is_string()) refuse("lacks the dtype" + of);
  if (shape == nullptr || !shape->is_array()) refuse("lacks the shape" + of);
  if (offsets == nullptr || !offsets->is_array() || offsets->as_array().size() != 2) {
    refuse("lacks the two data_offsets" + of);
  }
  Tensor t;
  t.name = name;
  t.file = path();
  const auto known = dtype_from_name(std::string(dtype->as_string()));
  if (!known) {
    refuse("has the dtype " + std::string(dtype->as_string()) + of +
           ", expected one of F64, F32, F16, BF16, I64, I32, U8");
  }
  t.dtype = *known;
  for (const json::value& dim : shape->as_array()) {
    const auto d = as_size(dim);
    if (!d || *d > INT64_MAX) refuse("has a bad dimension " + json::serialize(dim) + of);
    t.shape.push_back(static_cast<int64_t>(*d));
  }
  const auto begin = as_size(offsets->as_array()[0]), end = as_size(offsets->as_array()[1]);
  if (!begin || !end || *begin > *end || *end > buffer_bytes) {
    refuse("has the data_offsets " + json::serialize(*offsets) + of + ", expected a range within " +
           std::to_string(buffer_bytes) + " bytes of data");
  }
  const auto want = tensor_bytes(t.dtype, t.shape);
  if (!want || *want != *end - *begin) {
    refuse("stores " + std::to_string(*end - *begin) + " bytes" + of + ", expected " +
           (want ? std::to_string(*want) : "more than fits") + " for shape " + shape_text(t.shape) +
           " of " + std::string(dtype_name(t.dtype)));
  }
  t.bytes = *want;
  return {std::move(t), *begin};
}

void SafetensorsFile::check_tiling(std::vector<Entry>& entries, size_t buffer_bytes) const {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.tensor.bytes) < std::pair(b.begin, b.tensor.bytes);
  });
  size_t at = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != at) {
      refuse(
          (entry.begin < at ? "has overlapping data before tensor " : "has a hole before tensor ") +
          entry.tensor.name + ": it begins at " + std::to_string(entry.begin) + ", expected " +
          std::to_string(at));
    }
    at += entry.tensor.bytes;
  }
  if (at != buffer_bytes) {
    refuse("has " + std::to_string(buffer_bytes) + " bytes of data, its tensors take " +
           std::to_string(at));
  }
}

void SafetensorsFile::place(Entry& entry, const unsigned char* buffer) {
  Tensor& t = entry.tensor;
  const unsigned char* p = buffer + entry.begin;
  t.data = p;
  if (reinterpret_cast<uintptr_t>(p) % dtype_size(t.dtype) != 0 && t.bytes > 0) {
    aligned_copies_.emplace_back(t.bytes, path() + ": tensor " + t.name);
    std::memcpy(aligned_copies_.back().data(), p, t.bytes);
    t.data = aligned_copies_.back().data();
  }
  insert(std::move(t));
}

void SafetensorsWriter::add(const NamedTensor& tensor) {
  const auto bytes = tensor_bytes(tensor.dtype, tensor.shape);
  HEDDLE_CHECK(bytes.has_value(), tensor.name + " has the shape " + shape_text(tensor.shape));
  HEDDLE_CHECK(tensor.name != "__metadata__", "a tensor cannot have this name");
  const bool is_new = items_.emplace(tensor.name, Item{tensor, *bytes}).second;
  HEDDLE_CHECK(is_new, "tensor " + tensor.name + " was added twice");
}

std::string SafetensorsWriter::header(const std::vector<const Item*>& order) const {
  json::object root;
  if (!metadata_.empty()) {
    json::object metadata;
    for (const auto& [key, value] : metadata_) metadata[key] = value;
    root["__metadata__"] = std::move(metadata);
  }
  uint64_t at = 0;
  for (const Item* item : order) {
    json::object entry;
    entry["dtype"] = dtype_name(item->tensor.dtype);
    entry["shape"] = json::array(item->tensor.shape.begin(), item->tensor.shape.end());
    entry["data_offsets"] = json::array{at, at + item->bytes};
    root[item->tensor.name] = std::move(entry);
    at += item->bytes;
  }
  std::string text = json::serialize(root);
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

SafetensorsWriter::Written SafetensorsWriter::write(const std::string& path) const {
  std::vector<const Item*> order;
  for (const auto& [name, item] : items_) order.push_back(&item);
  std::stable_sort(order.begin(), order.end(), [](const Item* a, const Item* b) {
    return dtype_size(a->tensor.dtype) > dtype_size(b->tensor.dtype);
  });
  const std::string text = header(order);
  HEDDLE_CHECK(text.size() <= kMaxHeader, "safetensors header of " + path + " is too large");

  Written written;
  auto out = file_system().create(path);
  const auto put = [&](const void* data, size_t bytes) {
    out->write(data, bytes);
    written.crc32c = crc32c(data, bytes, written.crc32c);
    written.bytes += bytes;
  };
  const uint64_t header_bytes = text.size();
  put(&header_bytes, kPrefix);
  put(text.data(), text.size());
  for (const Item* item : order) {
    const void* data = item->tensor.data;
    if (item->bytes > 0) put(data, item->bytes);
    written.tensor_crc32c[item->tensor.name] = crc32c(data, item->bytes);
  }
  out->close();
  return written;
}

}  // namespace heddle
