// SPDX-License-Identifier: Apache-2.0
// Debian's PCRE2 implements Unicode 14, Hugging Face's engine Unicode 16. Characters added in between would
// split text differently, so these letters, numbers, marks, punctuation and symbols are listed here.
#pragma once

#include <span>

namespace stepforge {

struct CategoryRange {
  char32_t first;
  char32_t last;
  /// A general category: "Lu", "Ll", "Lt", "Lm", "Lo", "Nd", "Nl", "No", or a whole class: "M", "P", "S".
  const char* category;
};

std::span<const CategoryRange> unicode_supplement();

}  // namespace stepforge
