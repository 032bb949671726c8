// What can be said about a plugin file without running a byte of it.
#pragma once

#include <string>

namespace heddle {

// Throws heddle::Error (plugin) when the file is not a complete shared library for this machine:
// unreadable, not ELF, of another word size, byte order or architecture, not a shared object, or
// truncated. The text says what it is instead.
void check_library_file(const std::string& path);

}  // namespace heddle
