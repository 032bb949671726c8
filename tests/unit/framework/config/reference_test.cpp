#include "framework/config/reference.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace heddle {
namespace {

TEST(Reference, CommittedPageIsCurrent) {
  std::ifstream stream(HEDDLE_SOURCE_DIR "/docs/configuration.md");
  std::ostringstream text;
  text << stream.rdbuf();
  EXPECT_EQ(text.str(), config_reference_markdown())
      << "Regenerate it: cmake --build build/release --target heddle_config_reference && "
         "build/release/bin/heddle_config_reference > docs/configuration.md";
}

TEST(Reference, RowsHaveTypeDefaultAndLimits) {
  const std::string page = config_reference_markdown();
  EXPECT_NE(page.find("| `n_kv_head` | integer or auto | `auto` | 1 to 65536 |"),
            std::string::npos);
  EXPECT_NE(page.find("| `kind` | text | `muon` | one of muon, adamw |"), std::string::npos);
  EXPECT_NE(page.find("| `val_fraction` | number | `0.05` | 0 to 0.5 |"), std::string::npos);
}

}  // namespace
}  // namespace heddle
