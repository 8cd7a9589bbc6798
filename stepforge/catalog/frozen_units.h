// SPDX-License-Identifier: Apache-2.0
// Which weights of a model are not trained.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "stepforge/base/weight_code.h"
#include "stepforge/modelspec/model_spec.h"

namespace stepforge {

/// Whether a parameter is frozen, by the names of its unit and its layer too.
using IsFrozen =
    std::function<bool(const std::string& unit, const std::string& layer, const ParameterSpec& parameter)>;

/// Freezes parameters. Of a unit with trained and frozen parameters it makes two, that of the frozen ones "layers.0.frozen", and
/// gives a block those parts that it uses. Frozen weights are stored as `storage`; state stays as it is. Codes are a third unit
/// "layers.0.codes" of the matrices that have whole blocks in each row; other frozen weights are then bf16.
void freeze_if(ModelSpec& model, const IsFrozen& is_frozen, const WeightStorage& storage);

/// Freezes every parameter of which a pattern matches the whole name ("layers\.[01]\.mlp\..*"), or that of its unit or
/// layer ("layers\.[01]"), or of which patterns match the names of all tensors in Hugging Face files. Throws UsageError if a part of a parameter would be frozen, if a pattern matches
/// nothing or is no regular expression, or if nothing is left to train.
void freeze_units(ModelSpec& model, std::span<const std::string> patterns, const WeightStorage& storage);

}  // namespace stepforge
