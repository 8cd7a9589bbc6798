// SPDX-License-Identifier: Apache-2.0
// adapter_config.json of PEFT (0.21), in both directions.
#pragma once

#include <string>

#include "stepforge/base/json.h"
#include "stepforge/config/config.h"
#include "stepforge/modelspec/model_spec.h"

namespace stepforge {

inline constexpr const char* kPeftConfigFile = "adapter_config.json";
inline constexpr const char* kPeftWeightsFile = "adapter_model.safetensors";

/// `model` has the adapters of `adapter` (add_adapters()). `base`: the model that they belong to, a path or a name.
Json peft_config(const AdapterConfig& adapter, const ModelSpec& model, const std::string& base);

/// What `json`, read from `source`, describes. Fields that change nothing after training are ignored. Throws FormatError naming
/// a field that we do not know, or a value that we cannot compute with: another method than LoRA and DoRA.
AdapterConfig read_peft_config(const Json& json, const std::string& source);

}  // namespace stepforge
