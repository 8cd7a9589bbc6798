// SPDX-License-Identifier: Apache-2.0
// Text for a terminal: escape codes of the printers in this room, and data without any.
#pragma once

#include <string>
#include <string_view>

namespace stepforge {

inline constexpr std::string_view kDimText = "\033[2m";
inline constexpr std::string_view kBoldText = "\033[1m";
inline constexpr std::string_view kEvenColour = "\033[36m";
inline constexpr std::string_view kOddColour = "\033[33m";
inline constexpr std::string_view kResetColour = "\033[0m";

/// The text with control characters, other than tabs and line feeds, written as \x1B, so that data cannot steer the
/// terminal.
std::string printable(std::string_view text);

}  // namespace stepforge
