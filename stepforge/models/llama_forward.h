// Forward code of the Llama family: how its layers combine.
#pragma once

#include "stepforge/models/decoder_forward.h"

namespace stepforge {

Model llama_forward(const ModelConfig& config, const ParameterLookup& parameters,
                    const ForwardOptions& options);

}  // namespace stepforge
