// SPDX-License-Identifier: Apache-2.0
// Commands in messages, which people copy to a shell.
#pragma once

#include <string>
#include <string_view>

namespace stepforge {

/// `text` as one word of a POSIX shell: in single quotes, unless it means itself without them.
std::string shell_word(std::string_view text);

}  // namespace stepforge
