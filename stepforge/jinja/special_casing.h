// SPDX-License-Identifier: Apache-2.0
// Characters whose full case mapping is not the simple one, most because it is longer. In the order of code points.
#pragma once

#include <string_view>
#include <vector>

namespace stepforge::jinja {

struct SpecialCase {
  char32_t from;
  std::string_view to;
};

const std::vector<SpecialCase>& special_upper();
const std::vector<SpecialCase>& special_lower();
const std::vector<SpecialCase>& special_title();

}  // namespace stepforge::jinja
