// The tiny problems of a probe. Small, but each mask and head mapping that training uses is there,
// with odd lengths, strided rows, poisoned outputs and NaN behind the end of the cache.
#pragma once

#include "framework/attention/plugin.h"
#include "framework/attention/probe.h"

namespace heddle {

// Runs forward, backward and decode on a CPU context as far as the plugin accepts them, and adds
// the kernels that ran and what was refused to `report`. Throws heddle::Error (plugin) with the
// first wrong number, broken promise, stray write or changed floating-point mode, and when the
// plugin refuses every problem.
void run_probe_problems(const PluginContext& context, const PluginStage& stage,
                        PluginReport& report);

}  // namespace heddle
