// SPDX-License-Identifier: Apache-2.0
// The pieces of the known patterns, a block of text at a time: 64 bytes take a few operations on machine words.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "stepforge/text/character_masks.h"

namespace stepforge {

/// Where pieces end, in bytes from the start of a text.
struct PieceEnds {  // NOLINT(cppcoreguidelines-pro-type-member-init): only the first `count` are read
  size_t count = 0;
  std::array<size_t, ByteBits::kBytes> ends;
  std::span<const size_t> all() const { return {ends.data(), count}; }
};

/// Finds the ends of the first pieces of `text`, which is valid UTF-8 and not empty: as many as are certain from a block of
/// it, none if the first piece is too long for one.
using BlockScanner = void (*)(std::string_view text, PieceEnds& ends);

/// The scanner for exactly this pattern, which finds the pieces of scanner_for(), or null.
BlockScanner block_scanner_for(std::string_view pattern);

}  // namespace stepforge
