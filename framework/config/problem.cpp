#include "framework/config/problem.h"

#include <fmt/format.h>

namespace heddle::config_internal {

Error to_error(const std::vector<Problem>& problems) {
  if (problems.size() == 1) return config_error(problems[0].text, problems[0].remedy);
  std::string text = fmt::format("{} problems:", problems.size());
  for (const Problem& p : problems) {
    text += "\n  " + p.text;
    if (!p.remedy.empty()) text += (p.text.ends_with('.') ? " " : ". ") + p.remedy;
  }
  return config_error(text);
}

}  // namespace heddle::config_internal
