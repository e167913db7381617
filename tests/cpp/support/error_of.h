// The error of a call that is refused.
#pragma once

#include <gtest/gtest.h>
#include <string>

#include "octofold/error.h"

namespace octofold::test {

/// The text of the Error that the call throws, with that code; "no error" if it throws none.
template <typename Call>
std::string error_of(Call&& call, ErrorCode expected = ErrorCode::kInvalidArgument) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), expected) << error.what();
    return error.what();
  }
  return "no error";
}

}  // namespace octofold::test
