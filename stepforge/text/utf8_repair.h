// SPDX-License-Identifier: Apache-2.0
// From bytes that arrive piece by piece to valid UTF-8.
#pragma once

#include <string>

namespace stepforge {

/// Moves the complete characters from `bytes` to the end of `text`; bytes that cannot become a character become U+FFFD,
/// one for each longest ill-formed prefix, as Unicode recommends. An incomplete character at the end stays in `bytes`.
void move_complete_utf8(std::string& bytes, std::string& text);

/// The same for all bytes there are: an incomplete character at the end becomes U+FFFD.
std::string repaired_utf8(std::string bytes);

}  // namespace stepforge
