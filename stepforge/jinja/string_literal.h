// SPDX-License-Identifier: Apache-2.0
// The escapes of string literals.
#pragma once

#include <string>
#include <string_view>

namespace stepforge::jinja {

/// The value of what stands between the quotes of a literal, as Python's unicode-escape decodes it. Throws SourceFault.
std::string unescaped(std::string_view literal, int line);

}  // namespace stepforge::jinja
