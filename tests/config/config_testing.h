// SPDX-License-Identifier: Apache-2.0
// Helpers for the tests of config/.
#pragma once

#include <string>

#include "stepforge/base/error.h"
#include "stepforge/config/load.h"
#include "tests/support/strings.h"
#include "tests/support/throws.h"

namespace stepforge::testing {

inline LoadedConfig parsed(const std::string& text, const Strings& overrides = {},
                           ConfigUse use = ConfigUse::inspect) {
  return parse_config(text, "run.toml", overrides, use);
}

/// The message of the UsageError thrown for this configuration, or "" if it is accepted.
inline std::string error_of(const std::string& text, const Strings& overrides = {},
                            ConfigUse use = ConfigUse::inspect) {
  try {
    parsed(text, overrides, use);
    return "";
  } catch (const UsageError& error) {
    return error.what();
  }
}

}  // namespace stepforge::testing
