// SPDX-License-Identifier: Apache-2.0
// Helpers for the tests of converted configurations.
#pragma once

#include <string>

#include "stepforge/config/convert.h"
#include "tests/config/config_testing.h"

namespace stepforge::testing {

/// The result as our loader reads it. Every setting of the file must be accounted for, and the result be valid.
inline Config converted(const std::string& text, const std::string& name, const std::string& trainer,
                        const ConvertOptions& options = {}) {
  const ConvertedConfig result = convert_config(text, name, options);
  EXPECT_EQ(result.trainer, trainer);
  EXPECT_EQ(result.problem, "");
  EXPECT_EQ(result.refused, Strings{});
  EXPECT_EQ(result.n_translated + result.n_lost + result.n_needless + result.off.size(), result.n_settings);
  return parse_converted(result.toml).config;
}

inline Strings lost(const std::string& text, const std::string& name) {
  return convert_config(text, name).lost;
}

inline Strings refused(const std::string& text, const std::string& name) {
  return convert_config(text, name).refused;
}

}  // namespace stepforge::testing
