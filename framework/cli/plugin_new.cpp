#include "framework/cli/plugin_new.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "framework/attention/discovery.h"
#include "framework/cli/template_files.h"
#include "framework/core/error.h"
#include "framework/core/file.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemplateName = "my_attention";
constexpr std::string_view kTemplatePrefix = "@PREFIX@";
constexpr size_t kMaxName = 64;  // as the host accepts

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  for (size_t at; (at = text.find(from)) != std::string_view::npos;
       text.remove_prefix(at + from.size())) {
    result.append(text.substr(0, at)).append(to);
  }
  return result.append(text);
}

void check_name(const std::string& name) {
  const bool good =
      !name.empty() && name.size() <= kMaxName && name != "auto" &&
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string::npos;
  if (good) return;
  throw config_error(fmt::format("plugin new: '{}' cannot name a plugin: expected 1 to {} of a-z, "
                                 "0-9 and _, and not 'auto'",
                                 name, kMaxName),
                     "choose a name like my_attention");
}

// Nothing that exists is touched.
void check_folder(const std::string& folder) {
  std::error_code ec;
  const bool free =
      !fs::exists(folder, ec) || (fs::is_directory(folder, ec) && fs::is_empty(folder, ec));
  if (free) return;
  throw environment_error("plugin",
                          fmt::format("{} exists already and is not an empty folder", folder),
                          "choose another folder with --dir");
}

// Where this heddle is installed: the folder above its bin/.
std::string own_prefix() {
  return fs::path(executable_folder()).parent_path().string();
}

void run_new(const NewPluginOptions& options) {
  const std::vector<std::string> files = write_new_plugin(options);
  for (const std::string& file : files) fmt::print("{}\n", file);
  const std::string folder = parent_folder(files.front());
  fmt::print(
      "\nNext:\n  cd \"{0}\"\n  cmake -S . -B build -DCMAKE_PREFIX_PATH=\"{1}\" && cmake --build "
      "build\n"
      "  heddle plugin check build/{2}.so\nREADME.md goes on from there.\n",
      folder, options.prefix, options.name);
}

}  // namespace

std::vector<std::string> write_new_plugin(const NewPluginOptions& options) {
  check_name(options.name);
  const std::string folder = options.folder.empty() ? options.name : options.folder;
  check_folder(folder);
  std::error_code ec;
  fs::create_directories(folder, ec);
  if (ec) {
    throw environment_error("plugin", fmt::format("cannot create {}: {}", folder, ec.message()),
                            "choose another folder with --dir");
  }
  const std::string lead = options.lang + "/";
  std::vector<std::string> written;
  for (size_t i = 0; i < kTemplateFilesCount; ++i) {
    const EmbeddedFile& file = kTemplateFiles[i];
    if (!file.path.starts_with(lead)) continue;
    const std::string path =
        (fs::path(folder) / replaced(file.path.substr(lead.size()), kTemplateName, options.name))
            .string();
    const std::string named = replaced(file.contents, kTemplateName, options.name);
    write_file_atomically(path, replaced(named, kTemplatePrefix,
                                         options.prefix.empty() ? "/usr/local" : options.prefix));
    written.push_back(path);
  }
  if (written.empty()) {
    throw config_error(fmt::format("plugin new: no template for the language '{}'", options.lang),
                       "choose --lang c, cpp or cuda");
  }
  return written;
}

void add_new(CLI::App& plugin, int& exit_code) {
  auto options = std::make_shared<NewPluginOptions>();
  CLI::App* command =
      plugin.add_subcommand("new", "Write a project that builds an attention backend of your own");
  command->add_option("name", options->name, "its name: a-z, 0-9 and _")->required();
  command->add_option("--lang", options->lang, "c (C11), cpp (C++20) or cuda")
      ->check(CLI::IsMember({"c", "cpp", "cuda"}));
  command->add_option("--dir", options->folder,
                      "where to write it; a folder of that name if not given");
  command->callback([options, &exit_code] {
    options->prefix = own_prefix();
    run_new(*options);
    exit_code = 0;
  });
}

}  // namespace heddle
