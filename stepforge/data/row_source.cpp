// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/row_source.h"

#include <cmath>

namespace stepforge {

std::optional<int64_t> bytes_of_part(std::optional<int64_t> bytes, int64_t part, int64_t whole) {
  if (!bytes) return std::nullopt;
  return std::llround(static_cast<double>(*bytes) * static_cast<double>(part) / static_cast<double>(whole));
}

}  // namespace stepforge
