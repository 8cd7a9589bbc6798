// SPDX-License-Identifier: Apache-2.0
// The names of actions in messages, pictures and CSV files.
#pragma once

#include <optional>
#include <string>

#include "stepforge/schedule/schedule.h"

namespace stepforge {

/// "F", "B", "I" and "W" are PyTorch's names; "L" is ours.
const char* action_letter(ActionKind kind);
std::optional<ActionKind> action_kind(char letter);

/// "2F3": stage, letter, micro-batch.
std::string action_text(const Action& action);

}  // namespace stepforge
