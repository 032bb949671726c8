#include "framework/core/json.h"

#include <boost/json/basic_parser_impl.hpp>
#include <charconv>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <stdexcept>
#include <vector>

#include "framework/core/error.h"
#include "framework/core/file.h"

namespace heddle::json {
namespace {

namespace bj = boost::json;

// Builds a value as bj::parse does; the parser's own callbacks are what lets us see duplicate keys
// and the text of a number.
class StrictHandler {
 public:
  static constexpr size_t max_object_size = std::numeric_limits<size_t>::max();
  static constexpr size_t max_array_size = std::numeric_limits<size_t>::max();
  static constexpr size_t max_key_size = std::numeric_limits<size_t>::max();
  static constexpr size_t max_string_size = std::numeric_limits<size_t>::max();

  bool on_document_begin(bj::error_code&) {
    stack_.reset();
    return true;
  }
  bool on_document_end(bj::error_code&) { return true; }
  bool on_object_begin(bj::error_code&) {
    keys_.emplace_back();
    return true;
  }
  bool on_object_end(size_t n, bj::error_code&) {
    keys_.pop_back();
    stack_.push_object(n);
    return true;
  }
  bool on_array_begin(bj::error_code&) { return true; }
  bool on_array_end(size_t n, bj::error_code&) {
    stack_.push_array(n);
    return true;
  }
  bool on_key_part(bj::string_view s, size_t, bj::error_code&) {
    key_.append(s.data(), s.size());
    stack_.push_chars(s);
    return true;
  }
  bool on_key(bj::string_view s, size_t, bj::error_code& ec) {
    key_.append(s.data(), s.size());
    stack_.push_key(s);
    if (!keys_.back().insert(key_).second) {
      duplicate_ = key_;
      ec = bj::make_error_code(bj::error::syntax);
      return false;
    }
    key_.clear();
    return true;
  }
  bool on_string_part(bj::string_view s, size_t, bj::error_code&) {
    stack_.push_chars(s);
    return true;
  }
  bool on_string(bj::string_view s, size_t, bj::error_code&) {
    stack_.push_string(s);
    return true;
  }
  bool on_number_part(bj::string_view s, bj::error_code&) {
    number_.append(s.data(), s.size());
    return true;
  }
  bool on_int64(int64_t i, bj::string_view, bj::error_code&) {
    number_.clear();
    stack_.push_int64(i);
    return true;
  }
  bool on_uint64(uint64_t u, bj::string_view, bj::error_code&) {
    number_.clear();
    stack_.push_uint64(u);
    return true;
  }
  bool on_double(double d, bj::string_view s, bj::error_code&) {
    number_.append(s.data(), s.size());
    double exact = d;
    std::from_chars(number_.data(), number_.data() + number_.size(), exact);
    number_.clear();
    stack_.push_double(exact);
    return true;
  }
  bool on_bool(bool b, bj::error_code&) {
    stack_.push_bool(b);
    return true;
  }
  bool on_null(bj::error_code&) {
    stack_.push_null();
    return true;
  }
  bool on_comment_part(bj::string_view, bj::error_code&) { return true; }
  bool on_comment(bj::string_view, bj::error_code&) { return true; }

  const std::optional<std::string>& duplicate() const { return duplicate_; }
  value release() { return stack_.release(); }

 private:
  bj::value_stack stack_;
  std::vector<std::set<std::string>> keys_;
  std::string key_, number_;
  std::optional<std::string> duplicate_;
};

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

value parse_strict(std::string_view text) {
  bj::basic_parser<StrictHandler> parser{bj::parse_options{}};
  bj::error_code ec;
  size_t used = parser.write_some(false, text.data(), text.size(), ec);
  if (!ec && used < text.size()) {
    while (used < text.size() && std::strchr(" \t\r\n", text[used]) != nullptr && text[used] != 0)
      ++used;
    if (used < text.size()) ec = bj::make_error_code(bj::error::extra_data);
  }
  if (!ec && !parser.done()) ec = bj::make_error_code(bj::error::incomplete);
  if (ec) {
    const auto& key = parser.handler().duplicate();
    throw std::runtime_error((key ? "the key \"" + *key + "\" appears twice" : ec.message()) +
                             " at byte " + std::to_string(used));
  }
  return parser.handler().release();
}

value read_file(const std::string& path) {
  const MappedFile file(path);
  try {
    return parse_strict(file.text());
  } catch (const std::exception& e) {
    throw environment_error("file", path + " is not valid JSON: " + e.what(),
                            "restore the file or remove it");
  }
}

std::string pretty(const value& v) {
  std::string out;
  write(out, v, 0);
  return out + "\n";
}

}  // namespace heddle::json
