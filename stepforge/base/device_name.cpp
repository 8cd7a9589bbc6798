// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/device_name.h"

namespace stepforge {

std::optional<DeviceName> parse_device_name(std::string_view name) {
  if (name == "auto" || name == "cpu") return DeviceName{std::string(name), std::nullopt};
  const size_t colon = name.find(':');
  const std::string kind(name.substr(0, colon));
  if (kind != "cuda" && kind != "sim") return std::nullopt;
  if (colon == std::string_view::npos) return DeviceName{kind, std::nullopt};
  const std::string number(name.substr(colon + 1));
  constexpr size_t kMostDigits = 3;
  if (number.empty() || number.size() > kMostDigits ||
      number.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return DeviceName{kind, std::stoi(number)};
}

}  // namespace stepforge
