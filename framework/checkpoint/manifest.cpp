#include "framework/checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>

#include "framework/checkpoint/safetensors.h"
#include "framework/core/crc32c.h"
#include "framework/core/error.h"
#include "framework/core/file.h"
#include "framework/core/json.h"

namespace heddle {
namespace {

constexpr const char* kFormatName = "heddle-checkpoint";

std::string hex(uint32_t crc) {
  return fmt::format("{:08x}", crc);
}

uint32_t from_hex(const json::value& v) {
  const std::string text(v.as_string());
  uint32_t crc = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), crc, 16);
  if (text.size() != 8 || ec != std::errc() || end != text.data() + text.size()) {
    throw std::runtime_error("\"" + text + "\" is no CRC of eight hexadecimal digits");
  }
  return crc;
}

uint32_t crc_of(const json::object& o) {
  const std::string text = json::serialize(o);
  return crc32c(text.data(), text.size());
}

json::object encode(const ManifestFile& file) {
  json::object o{{"name", file.name},
                 {"role", file.role},
                 {"bytes", file.bytes},
                 {"crc32c", hex(file.crc32c)}};
  if (!file.tensor_crc32c.empty()) {
    json::object tensors;
    for (const auto& [name, crc] : file.tensor_crc32c) tensors[name] = hex(crc);
    o["tensors"] = std::move(tensors);
  }
  return o;
}

ManifestFile decode(const json::value& v) {
  ManifestFile file;
  file.name = std::string(v.at("name").as_string());
  if (file.name.empty() || file.name.find('/') != std::string::npos || file.name[0] == '.') {
    throw std::runtime_error("\"" + file.name + "\" is no plain file name");
  }
  file.role = std::string(v.at("role").as_string());
  file.bytes = json::value_to<uint64_t>(v.at("bytes"));
  file.crc32c = from_hex(v.at("crc32c"));
  if (const json::value* tensors = v.as_object().if_contains("tensors")) {
    for (const auto& [name, crc] : tensors->as_object()) {
      file.tensor_crc32c[std::string(name)] = from_hex(crc);
    }
  }
  return file;
}

[[noreturn]] void damaged(const std::string& path, const std::string& what) {
  throw environment_error("checkpoint", path + " " + what);
}

// Which tensors of a damaged file differ, for the message; empty when its header is damaged too.
std::string differing_tensors(const std::string& path, const ManifestFile& file) {
  std::string names;
  try {
    const SafetensorsFile tensors(path);
    for (const auto& [name, t] : tensors.tensors()) {
      const auto want = file.tensor_crc32c.find(name);
      if (want == file.tensor_crc32c.end() || want->second != crc32c(t.data, t.bytes)) {
        names += (names.empty() ? " (in tensor " : ", ") + name;
      }
    }
  } catch (const Error&) {
    return " (in its header)";
  }
  return names.empty() ? " (in its header)" : names + ")";
}

}  // namespace

std::string ManifestFile::text() const {
  return json::serialize(encode(*this));
}

ManifestFile ManifestFile::parse(const std::string& text) {
  return decode(boost::json::parse(text));
}

std::string Manifest::text() const {
  json::array list;
  for (const ManifestFile& file : files) list.push_back(encode(file));
  json::object o{{"format", kFormatName},
                 {"format_version", kFormat},
                 {"heddle_version", heddle_version},
                 {"step", step},
                 {"files", std::move(list)}};
  o["manifest_crc32c"] = hex(crc_of(o));
  return json::pretty(o);
}

Manifest Manifest::read(const std::string& folder) {
  const std::string path = folder + "/" + kManifestName;
  if (!path_exists(path)) {
    damaged(folder, "is not a complete checkpoint: it has no manifest.json");
  }
  const json::value v = json::read_file(path);
  Manifest m;
  try {
    json::object o = v.as_object();
    if (o.at("format").as_string() != kFormatName) {
      throw std::runtime_error("its format is not " + std::string(kFormatName));
    }
    const int64_t format = o.at("format_version").as_int64();
    if (format > kFormat) {
      throw environment_error("checkpoint",
                              fmt::format("{} has format version {}, this heddle reads up to {}",
                                          path, format, kFormat),
                              "use the heddle that wrote it, or a newer one");
    }
    const uint32_t want = from_hex(o.at("manifest_crc32c"));
    o.erase("manifest_crc32c");
    if (const uint32_t got = crc_of(o); got != want) {
      throw std::runtime_error("its CRC is " + hex(got) + ", expected " + hex(want));
    }
    m.step = o.at("step").as_int64();
    m.heddle_version = std::string(o.at("heddle_version").as_string());
    for (const json::value& file : o.at("files").as_array()) m.files.push_back(decode(file));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    damaged(path, std::string("is damaged: ") + e.what());
  }
  return m;
}

void Manifest::verify(const std::string& folder, bool contents) const {
  for (const ManifestFile& file : files) {
    const std::string path = folder + "/" + file.name;
    std::error_code ec;
    const uint64_t bytes = std::filesystem::file_size(path, ec);
    if (ec) damaged(path, "cannot be read: " + ec.message());
    if (bytes != file.bytes) {
      damaged(path, fmt::format("has {} bytes, expected {}", bytes, file.bytes));
    }
  }
  if (!contents) return;
  for (const ManifestFile& file : files) {
    const std::string path = folder + "/" + file.name;
    const MappedFile mapped(path);
    const uint32_t got = crc32c(mapped.data(), mapped.size());
    if (got == file.crc32c) continue;
    const bool tensors = !file.tensor_crc32c.empty();
    damaged(path,
            fmt::format("is damaged{}: CRC-32C is {}, expected {}",
                        tensors ? differing_tensors(path, file) : "", hex(got), hex(file.crc32c)));
  }
}

}  // namespace heddle
