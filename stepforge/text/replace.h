// SPDX-License-Identifier: Apache-2.0
// Replacing the matches of a pattern, for normalizers and decoders.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "stepforge/text/splitter.h"

namespace stepforge {

/// The most bytes that a text of `bytes` may become. A hostile file could double a text many times over.
size_t max_replaced(size_t bytes);

/// `text` with `content` in place of each match. Throws Error if the result would have more than `limit` bytes.
std::string replace_matches(std::string_view text, const SplitPattern& pattern, std::string_view content,
                            SplitPattern::Scratch& scratch, size_t limit);

/// `text` with `content` in place of each `old`, which is not empty.
std::string replace_text(std::string_view text, std::string_view old, std::string_view content);

}  // namespace stepforge
