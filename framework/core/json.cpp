#include "framework/core/json.h"

#include <fstream>
#include <sstream>

#include "framework/core/error.h"

namespace heddle::json {
namespace {

void write(std::string& out, const value& v, int depth) {
  const std::string pad(static_cast<size_t>(depth) * 2 + 2, ' ');
  const std::string end_pad(static_cast<size_t>(depth) * 2, ' ');
  if (const object* o = v.if_object(); o != nullptr && !o->empty()) {
    out += "{\n";
    for (auto it = o->begin(); it != o->end(); ++it) {
      if (it != o->begin()) out += ",\n";
      out += pad + serialize(it->key()) + ": ";
      write(out, it->value(), depth + 1);
    }
    out += "\n" + end_pad + "}";
  } else if (const array* a = v.if_array(); a != nullptr && !a->empty()) {
    out += "[";
    for (size_t i = 0; i < a->size(); ++i) {
      if (i > 0) out += ", ";
      write(out, (*a)[i], depth + 1);
    }
    out += "]";
  } else {
    out += serialize(v);
  }
}

}  // namespace

value read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw environment_error("file", "cannot read " + path, "check the path");
  std::stringstream text;
  text << in.rdbuf();
  try {
    return parse(text.str());
  } catch (const std::exception& e) {
    throw environment_error("file", path + " is not valid JSON: " + e.what());
  }
}

std::string pretty(const value& v) {
  std::string out;
  write(out, v, 0);
  return out + "\n";
}

}  // namespace heddle::json
