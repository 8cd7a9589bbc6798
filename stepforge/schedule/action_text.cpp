// SPDX-License-Identifier: Apache-2.0
#include "stepforge/schedule/action_text.h"

#include <array>

#include "stepforge/base/format.h"

namespace stepforge {

namespace {
constexpr std::array<const char*, 5> kLetters = {"F", "B", "I", "W", "L"};  // in the order of ActionKind
}

const char* action_letter(ActionKind kind) {
  return kLetters.at(static_cast<std::size_t>(kind));
}

std::optional<ActionKind> action_kind(char letter) {
  for (std::size_t i = 0; i < kLetters.size(); ++i) {
    if (*kLetters.at(i) == letter) return static_cast<ActionKind>(i);
  }
  return std::nullopt;
}

std::string action_text(const Action& action) {
  return format("{}{}{}", action.stage, action_letter(action.kind), action.micro_batch);
}

}  // namespace stepforge
