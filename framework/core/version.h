// Generated values live in the build tree; this is what the rest of the code reads.
#pragma once

#include "heddle_build.h"

namespace heddle {

inline constexpr const char* kVersion = HEDDLE_VERSION;
// Where an installed or built heddle looks for plugins, after attention.plugin_path and
// HEDDLE_PLUGIN_PATH: beside the executable at ../lib/heddle/plugins.
inline constexpr const char* kPluginFolder = "lib/heddle/plugins";
// Where the CUDA device's module lies, beside the executable too.
inline constexpr const char* kModuleFolder = "lib/heddle";

}  // namespace heddle
