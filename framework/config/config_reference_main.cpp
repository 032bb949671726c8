// Prints docs/configuration.md.
#include <cstdio>

#include "framework/config/reference.h"

int main() {
  std::fputs(heddle::config_reference_markdown().c_str(), stdout);
  return 0;
}
