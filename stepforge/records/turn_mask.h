// SPDX-License-Identifier: Apache-2.0
// The keys with which data sets say whether a turn of a conversation is learned: one meaning in every layout.
#pragma once

#include <string>

#include "stepforge/base/json.h"

namespace stepforge {

/// What a turn says of itself.
enum class TurnMask { none, learned, excluded };

/// Reads `loss` (XTuner), `train` and `training` (Axolotl), true or false; `weight` and `loss_weight` (OpenAI, Mistral), 0 or 1;
/// `masked`, true for a turn that is not learned; and takes them out of the turn. Null is as if absent, as in tables. `place`
/// stands in errors: "messages[2]". Throws FormatError for another value, keys that contradict each other, and keys that look like
/// a mask and are unknown.
TurnMask take_turn_mask(Json& turn, const std::string& place);

}  // namespace stepforge
