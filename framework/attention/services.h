// What a plugin may ask of the host: log lines and workers.
#pragma once

#include <string>

#include "plugins/abi/heddle_attention.h"

namespace heddle {

// Log lines carry *label, which must live as long as the table. parallel_for hands pieces of
// `grain` indices out one at a time in order, so that pieces of unequal cost balance; num_workers()
// follows heddle::num_threads(), which therefore has to be set before plugins are loaded.
heddle_host make_host_services(const std::string* label);

}  // namespace heddle
