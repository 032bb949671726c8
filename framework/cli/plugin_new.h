// `heddle plugin new NAME`: a project that builds an attention backend.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace heddle {

struct NewPluginOptions {
  std::string name;        // [a-z0-9_]+
  std::string lang = "c";  // c | cpp | cuda
  std::string folder;      // empty: ./NAME
  std::string prefix;      // of the installation, as it stands in the README; empty: /usr/local
};

// Writes the template of the language with `my_attention` replaced by the name, in file names and
// in contents. Returns the paths written. Throws heddle::Error: config for a bad name or language,
// environment when the folder holds something already or cannot be written.
std::vector<std::string> write_new_plugin(const NewPluginOptions& options);

// Adds the subcommand.
void add_new(CLI::App& plugin, int& exit_code);

}  // namespace heddle
