// Boost.JSON under the names that Heddle uses, and reading a file with a useful error.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <string_view>

namespace heddle::json {

using boost::json::array;
using boost::json::object;
using boost::json::parse;
using boost::json::serialize;
using boost::json::value;
using boost::json::value_from;
using boost::json::value_to;

// As parse(), but refuses an object with two equal keys and reads every double to the nearest one
// (Boost 1.81 is off by one unit now and then), so that what serialize() wrote comes back to the
// bit. Throws std::runtime_error with the byte offset.
value parse_strict(std::string_view text);

// parse_strict() of a file. Throws heddle::Error (environment) naming the file when it cannot be
// read or parsed.
value read_file(const std::string& path);

// Two-space indented text with a final newline, for files that people read.
std::string pretty(const value& v);

}  // namespace heddle::json
