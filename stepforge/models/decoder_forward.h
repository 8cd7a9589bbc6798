// What dense decoder families share in their forward code: embedding and head around the family's own layers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "stepforge/config/config.h"
#include "stepforge/modelspec/model_spec.h"
#include "stepforge/nn/block.h"
#include "stepforge/nn/layers.h"

namespace stepforge {

struct ForwardOptions {
  int64_t context_length = 0;  ///< positions that the rope tables cover
  int64_t loss_chunk = 0;      ///< tokens whose logits exist at once; 0 chooses by vocabulary
};

/// Query and key-value heads, head size and scale as the config says.
AttentionShape attention_shape(const ModelConfig& config);

/// Makes the block of layer `layer`; the table lives as long as the block.
using LayerFactory =
    std::function<std::unique_ptr<Block>(int64_t layer, std::shared_ptr<const RopeTable> rope)>;

/// Llama's layer, which the dense families share: attention, then the MLP, each a region that may be
/// recomputed. `qk_norm`: each head of q and k is normed before the rotary embedding. `config` must outlive
/// the factory.
LayerFactory dense_layers(const ModelConfig& config, const ParameterLookup& parameters, bool qk_norm);

/// embedding, `make_layer` for each layer, head (tied or not). Parameters are looked up by their
/// specification's names.
Model decoder_forward(const ModelConfig& config, const ParameterLookup& parameters,
                      const ForwardOptions& options, const LayerFactory& make_layer);

}  // namespace stepforge
