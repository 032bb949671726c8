// The text of the config error that a call throws.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "framework/core/error.h"

namespace heddle {

template <class Call>
std::string config_error_text(Call call) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kConfig);
    return e.what();
  }
  return "no error";
}

}  // namespace heddle
