#include "framework/core/error.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace heddle {
namespace {

std::string compose(const std::string& area, const std::string& message,
                    const std::string& remedy) {
  std::string text = "[" + area + "] " + message;
  if (!remedy.empty()) text += (message.ends_with('.') ? " " : ". ") + remedy;
  return text;
}

}  // namespace

Error::Error(ExitCode code, std::string area, std::string message, std::string remedy)
    : std::runtime_error(compose(area, message, remedy)),
      code_(code),
      area_(std::move(area)),
      message_(std::move(message)),
      remedy_(std::move(remedy)) {}

Error config_error(std::string message, std::string remedy) {
  return {ExitCode::kConfig, "config", std::move(message), std::move(remedy)};
}

Error environment_error(std::string area, std::string message, std::string remedy) {
  return {ExitCode::kEnvironment, std::move(area), std::move(message), std::move(remedy)};
}

Error plugin_error(std::string message, std::string remedy) {
  return {ExitCode::kPlugin, "plugin", std::move(message), std::move(remedy)};
}

Error comm_error(std::string message, std::string remedy) {
  return {ExitCode::kCommunication, "comm", std::move(message), std::move(remedy)};
}

Error numerics_error(std::string message, std::string remedy) {
  return {ExitCode::kNumerics, "numerics", std::move(message), std::move(remedy)};
}

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "heddle: internal error at %s:%d: %s is false: %s\n", file, line, condition,
               message.c_str());
  std::abort();
}

}  // namespace heddle
