// SPDX-License-Identifier: Apache-2.0
// The forward code of dense decoders, one for all families: their differences are in the catalog.
#pragma once

#include <cstdint>

#include "stepforge/config/config.h"
#include "stepforge/nn/block.h"

namespace stepforge {

struct ForwardOptions {
  int64_t context_length = 0;  ///< positions that the rotary table covers
  int64_t loss_chunk = 0;      ///< tokens whose logits exist at once; 0 chooses by vocabulary
};

/// Embedding, layers and head of `config`, bound to `parameters`, which are looked up by the names of the
/// specification (catalog/decoder_spec.h). Throws UsageError for an unknown family.
Model make_model(const ModelConfig& config, const ParameterLookup& parameters, const ForwardOptions& options);

}  // namespace stepforge
