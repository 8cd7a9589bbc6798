// SPDX-License-Identifier: Apache-2.0
// The losses of pairs of answers and of judged answers: what [preference] of the configuration asks for.
#pragma once

#include "stepforge/config/config.h"
#include "stepforge/modelspec/pair_loss.h"

namespace stepforge {

/// The loss that `preference` names, which is not none.
PairLoss find_pair_loss(const PreferenceConfig& preference);

}  // namespace stepforge
