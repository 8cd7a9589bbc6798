// SPDX-License-Identifier: Apache-2.0
// Escape codes of the printers in this room.
#pragma once

#include <string_view>

namespace stepforge {

inline constexpr std::string_view kDimText = "\033[2m";
inline constexpr std::string_view kBoldText = "\033[1m";
inline constexpr std::string_view kEvenColour = "\033[36m";
inline constexpr std::string_view kOddColour = "\033[33m";
inline constexpr std::string_view kResetColour = "\033[0m";

}  // namespace stepforge
