#include "framework/config/number.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

namespace heddle::config_internal {
namespace {

// Integers up to here survive a trip through double, so 1e6 and 2.0 are exact.
constexpr double kMaxExactDouble = 9007199254740992.0;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

Number refused(std::string problem, std::string remedy = {}) {
  Number number;
  number.problem = std::move(problem);
  number.remedy = std::move(remedy);
  return number;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

// Moves digits, and single underscores between them, from the front of `text` to `digits`.
bool take_digits(std::string_view& text, std::string& digits, bool (*belongs)(char)) {
  const size_t before = digits.size();
  bool after_digit = false;
  while (!text.empty() && (belongs(text[0]) || text[0] == '_')) {
    if (text[0] == '_') {
      if (!after_digit || text.size() < 2 || !belongs(text[1])) return false;
    } else {
      digits += text[0];
    }
    after_digit = text[0] != '_';
    text.remove_prefix(1);
  }
  return digits.size() > before;
}

Number not_a_number(std::string_view text) {
  if (text.find(':') != std::string_view::npos) {
    return refused("not a number", "Base-60 notation is not supported: write the number out");
  }
  if (text.find(',') != std::string_view::npos) {
    return refused("not a number",
                   "Group digits with underscores, as in 60_000, and use a "
                   "point for decimals");
  }
  if (!text.empty() && is_digit(text[0]) &&
      std::string_view("kKmMgGtTbB%").find(text.back()) != std::string_view::npos) {
    return refused("not a number", "Suffixes are not supported: write 10e6 or 10_000_000");
  }
  return refused("not a number");
}

Number parse_hex(std::string_view body, bool negative) {
  std::string digits;
  const bool shaped = take_digits(
      body, digits, [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; });
  if (!shaped || !body.empty()) return refused("not a number");
  if (negative) digits.insert(0, "-");
  Number number;
  int64_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (error != std::errc()) return refused("too large for a 64-bit integer");
  number.integer = value;
  number.real = static_cast<double>(value);
  return number;
}

// `clean` holds a sign, digits, a point and an exponent as std::from_chars reads them.
Number from_decimal(const std::string& clean, bool plain_digits) {
  const char* end = clean.data() + clean.size();
  Number number;
  if (std::from_chars(clean.data(), end, number.real).ec != std::errc()) {
    return refused("too large or too small for a double");
  }
  int64_t integer = 0;
  if (plain_digits) {
    if (std::from_chars(clean.data(), end, integer).ec == std::errc()) number.integer = integer;
  } else if (number.real == std::floor(number.real) && std::fabs(number.real) <= kMaxExactDouble) {
    number.integer = static_cast<int64_t>(number.real);
  }
  return number;
}

}  // namespace

Number parse_number(std::string_view text) {
  std::string_view rest = text;
  bool negative = false;
  if (!rest.empty() && (rest[0] == '+' || rest[0] == '-')) {
    negative = rest[0] == '-';
    rest.remove_prefix(1);
  }
  const std::string word = lower(rest);
  if (word == "inf" || word == ".inf" || word == "infinity" || word == "nan" || word == ".nan") {
    return refused("not a finite number", "Write a finite number");
  }
  if (word.starts_with("0x")) return parse_hex(rest.substr(2), negative);

  std::string clean = negative ? "-" : "";
  const size_t sign = clean.size();
  const bool has_whole = !rest.empty() && is_digit(rest[0]);
  if (has_whole && !take_digits(rest, clean, is_digit)) return not_a_number(text);
  const std::string whole = clean.substr(sign);
  const bool plain_digits = has_whole && rest.empty();
  bool has_fraction = false;
  if (!rest.empty() && rest[0] == '.') {
    rest.remove_prefix(1);
    clean += has_whole ? "." : "0.";
    has_fraction = !rest.empty() && is_digit(rest[0]);
    if (has_fraction && !take_digits(rest, clean, is_digit)) return not_a_number(text);
  }
  if (!has_whole && !has_fraction) return not_a_number(text);
  if (!rest.empty() && (rest[0] == 'e' || rest[0] == 'E')) {
    clean += 'e';
    rest.remove_prefix(1);
    if (!rest.empty() && (rest[0] == '+' || rest[0] == '-')) {
      if (rest[0] == '-') clean += '-';
      rest.remove_prefix(1);
    }
    if (!take_digits(rest, clean, is_digit)) return not_a_number(text);
  }
  if (!rest.empty()) return not_a_number(text);
  if (whole.size() > 1 && whole[0] == '0') {
    const std::string decimal = clean.substr(std::min(clean.find_first_not_of("-0"), clean.size()));
    return refused("has a leading zero, which some readers take as octal",
                   "Write it without leading zeros" +
                       (plain_digits && !decimal.empty() ? ": " + decimal : std::string()));
  }
  return from_decimal(clean, plain_digits);
}

}  // namespace heddle::config_internal
