// SPDX-License-Identifier: Apache-2.0
// Which optimizer updates a parameter, and the state that it keeps.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "stepforge/config/config.h"
#include "stepforge/modelspec/model_spec.h"

namespace stepforge {

/// The optimizer of a parameter: that of the settings, but Muon updates matrices inside the layers only, and AdamW the
/// rest.
OptimizerName optimizer_of(const OptimizerConfig& settings, const ParameterSpec& parameter);

/// The names of the slots of a parameter in checkpoints, as in torch.optim: "optim.state.<name>.exp_avg". Each is an fp32
/// value per element.
std::span<const std::string_view> optimizer_slots(const OptimizerConfig& settings,
                                                  const ParameterSpec& parameter);

/// The number of slots of each parameter of a unit; none has any in a frozen one.
std::vector<int> slot_counts(const OptimizerConfig& settings, const UnitSpec& unit);

/// Bytes that an update of the unit allocates and frees.
int64_t update_workspace(const OptimizerConfig& settings, const UnitSpec& unit);

}  // namespace stepforge
