// Where plugin files are looked for. Never the current directory.
#pragma once

#include <string>
#include <vector>

#include "framework/config/config.h"

namespace heddle {

// A file that may be a plugin.
struct PluginFile {
  std::string path;    // absolute
  std::string source;  // "attention.plugin_path", "HEDDLE_PLUGIN_PATH" or "built-in folder"
  bool named = false;  // the user named this very file, not a folder around it
};

struct PluginFiles {
  std::vector<PluginFile> files;       // in order of preference; a file appears once
  std::vector<std::string> folders;    // searched, for messages
  std::vector<std::string> not_found;  // entries of HEDDLE_PLUGIN_PATH that do not exist
};

// In order: config.plugin_path (folders or files), HEDDLE_PLUGIN_PATH (colon separated, likewise),
// ../lib/heddle/plugins beside the executable. Of a folder: *.so, sorted by name. Throws
// heddle::Error (plugin) when an entry of config.plugin_path does not exist.
PluginFiles find_plugin_files(const AttentionConfig& config);

// Folder of the running executable.
std::string executable_folder();

}  // namespace heddle
