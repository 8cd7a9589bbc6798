// Helpers of the tests of config/.
#pragma once

#include <string>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/config/load.h"

namespace stepforge {

using Words = std::vector<std::string>;

inline LoadedConfig parsed(const std::string& text, const Words& overrides = {},
                           ConfigUse use = ConfigUse::inspect) {
  return parse_config(text, "run.toml", overrides, use);
}

/// The text of the UsageError that this configuration raises, or "" if it is accepted.
inline std::string error_of(const std::string& text, const Words& overrides = {},
                            ConfigUse use = ConfigUse::inspect) {
  try {
    parsed(text, overrides, use);
    return "";
  } catch (const UsageError& error) {
    return error.what();
  }
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace stepforge
