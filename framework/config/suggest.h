// "Did you mean ...?": nearest words, and what other trainers call our keys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace heddle::config_internal {

std::string lower_case(std::string_view text);

// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
size_t edit_distance(std::string_view a, std::string_view b);

// The candidate closest to `word`, if it is close enough to be a slip of the pen; else "".
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// Every key as "section.name", and the sections, in the order of the field list.
const std::vector<std::string>& all_keys();
const std::vector<std::string>& all_sections();
// The names in one section, without the section.
std::vector<std::string> keys_of_section(std::string_view section);

// A sentence for a key that does not exist ("model.n_kv_heads", "n_head" or "trian.seed"):
// the key that was meant, or what to do instead; "" when nothing is near.
std::string suggest_key(const std::string& unknown);

}  // namespace heddle::config_internal
