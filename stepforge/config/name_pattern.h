// SPDX-License-Identifier: Apache-2.0
// Regular expressions for parameter names.
#pragma once

#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;

namespace stepforge {

/// A compiled PCRE2 pattern. The number of matching steps is limited, so that nested repetitions terminate.
class NamePattern {
 public:
  /// Throws FormatError: "not a regular expression: missing closing parenthesis, at character 5".
  explicit NamePattern(const std::string& text);
  /// Whether the pattern matches a part of `name`. Throws FormatError if matching takes too many steps.
  bool matches(std::string_view name) const;

 private:
  std::shared_ptr<const pcre2_real_code_8> code_;
};

}  // namespace stepforge
