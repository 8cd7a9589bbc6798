// The model families, torch library: forward code by family name.
#pragma once

#include "stepforge/models/decoder_forward.h"

namespace stepforge {

/// The blocks of config.family bound to `parameters`. Throws UsageError for an unknown family.
Model make_model(const ModelConfig& config, const ParameterLookup& parameters, const ForwardOptions& options);

}  // namespace stepforge
