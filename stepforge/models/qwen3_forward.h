// Forward code of the Qwen3 family: how its layers combine.
#pragma once

#include "stepforge/models/decoder_forward.h"

namespace stepforge {

Model qwen3_forward(const ModelConfig& config, const ParameterLookup& parameters,
                    const ForwardOptions& options);

}  // namespace stepforge
