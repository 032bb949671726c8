// manifest.json of a checkpoint: written last, so a folder that has one is complete; with size and
// CRC-32C of every file, so a damaged one is known before anything is loaded.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace heddle {

inline constexpr const char* kManifestName = "manifest.json";

// One file of a checkpoint. role: "model", "optimizer" (safetensors) or "state" (JSON); a role may
// be spread over several files, each tensor name in exactly one.
struct ManifestFile {
  std::string name;  // without folders
  std::string role;
  uint64_t bytes = 0;
  uint32_t crc32c = 0;
  std::map<std::string, uint32_t> tensor_crc32c;

  // As one line of JSON, for handing over to the process that writes the manifest.
  std::string text() const;
  static ManifestFile parse(const std::string& text);
};

struct Manifest {
  static constexpr int64_t kFormat = 1;

  int64_t step = 0;
  std::string heddle_version;
  std::vector<ManifestFile> files;

  // The text of the file; its own last member is the CRC-32C of all others.
  std::string text() const;

  // Reads folder/manifest.json. Throws heddle::Error (environment) when it is missing (the
  // checkpoint is incomplete), damaged, or of a newer format.
  static Manifest read(const std::string& folder);
  // Throws, naming the file, what was got and what was expected, unless every listed file is there
  // with the listed size and, when `contents` is asked for, the listed bytes.
  void verify(const std::string& folder, bool contents) const;
};

}  // namespace heddle
