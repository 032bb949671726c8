// The rules by which a plugin's function table is accepted, apart from how it was found.
#pragma once

#include "plugins/abi/heddle_attention.h"

namespace heddle {

// Throws heddle::Error (plugin) naming the first rule that the table breaks: magic, ABI major,
// struct sizes, name, device type, required functions. Reads no field beyond what struct_size
// covers. The message is a predicate without subject ("has no query function").
void check_plugin_table(const heddle_attention_plugin* table);

}  // namespace heddle
