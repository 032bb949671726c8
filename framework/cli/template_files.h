// The files of plugins/template, which the build writes into the binary.
#pragma once

#include <cstddef>
#include <string_view>

namespace heddle {

struct EmbeddedFile {
  std::string_view path;  // below plugins/template: "cpp/my_attention.cpp"
  std::string_view contents;
};

extern const EmbeddedFile kTemplateFiles[];
extern const size_t kTemplateFilesCount;

}  // namespace heddle
