// SPDX-License-Identifier: Apache-2.0
// The rotary settings of config.json. Not public.
#pragma once

#include <string_view>

#include "stepforge/base/json_reader.h"
#include "stepforge/catalog/families.h"
#include "stepforge/config/config.h"

namespace stepforge {

/// Reads the rotary settings of `file`, a whole config.json: of all layers, or of those without and with a window.
/// Throws FormatError for settings that are not supported or that the type does not read, or that versions of
/// transformers read differently.
void read_rope(const JsonReader& file, const ModelFamily& family, Config& config);

/// Whether frequencies of this type depend on an option of [model.rope_scaling], besides `type`.
bool reads_rope_option(RopeScalingType type, std::string_view option);

/// The object "rope_scaling"; null if frequencies are not scaled.
Json rope_scaling_json(const ModelConfig& model);

}  // namespace stepforge
