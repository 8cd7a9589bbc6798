// SPDX-License-Identifier: Apache-2.0
// Base64 with the standard alphabet and padding (RFC 4648).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace stepforge {

/// nullopt if `text` is not canonical base64: length, padding, alphabet or bits that must be zero.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace stepforge
