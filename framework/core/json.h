// Boost.JSON under the names that Heddle uses, and reading a file with a useful error.
#pragma once

#include <boost/json.hpp>
#include <string>

namespace heddle::json {

using boost::json::array;
using boost::json::object;
using boost::json::parse;
using boost::json::serialize;
using boost::json::value;
using boost::json::value_from;
using boost::json::value_to;

// Throws heddle::Error (environment) naming the file when it cannot be read or parsed.
value read_file(const std::string& path);

// Two-space indented text with a final newline, for files that people read.
std::string pretty(const value& v);

}  // namespace heddle::json
