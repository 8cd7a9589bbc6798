// SPDX-License-Identifier: Apache-2.0
// Colours of the printers in this room.
#pragma once

#include <string>
#include <string_view>

namespace stepforge {

inline constexpr std::string_view kDimText = "\033[2m";
inline constexpr std::string_view kBoldText = "\033[1m";
inline constexpr std::string_view kEvenColour = "\033[36m";
inline constexpr std::string_view kOddColour = "\033[33m";

/// The text in the colour, if there are colours.
inline std::string painted(std::string_view text, std::string_view colour, bool has_colours) {
  return has_colours ? std::string(colour) + std::string(text) + "\033[0m" : std::string(text);
}

}  // namespace stepforge
