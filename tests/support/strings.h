// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace stepforge::testing {

using Strings = std::vector<std::string>;

}  // namespace stepforge::testing
