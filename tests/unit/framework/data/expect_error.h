// The assertion on errors that the tests of this folder share.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "framework/core/error.h"

namespace heddle {

// Runs `call` and expects an Error with this exit code, a remedy, and a text with all `parts`.
template <class Call>
void expect_error(ExitCode code, const std::vector<std::string>& parts, Call&& call) {
  try {
    call();
    ADD_FAILURE() << "no error, expected one about " << parts.front();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.code()), static_cast<int>(code)) << e.what();
    EXPECT_FALSE(e.remedy().empty()) << e.what();
    for (const std::string& part : parts) EXPECT_THAT(e.what(), testing::HasSubstr(part));
  }
}

}  // namespace heddle
