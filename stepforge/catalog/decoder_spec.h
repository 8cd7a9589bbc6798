// The specification that dense decoder families share: embedding, L layers of attention and MLP, norm and
// head.
#pragma once

#include "stepforge/catalog/layers.h"
#include "stepforge/config/config.h"
#include "stepforge/modelspec/model_spec.h"

namespace stepforge {

/// config.head_dim, or dim / n_heads where that is 0.
int64_t head_dim_of(const ModelConfig& config);

AttentionDims attention_dims(const ModelConfig& config, bool qk_norm);

/// Units and blocks in forward order: "embedding", "layers.0" ..., "head". `loss_chunk` is the number of
/// tokens whose logits exist at once. Throws UsageError if config.vocab_size is not known yet.
ModelSpec decoder_spec(const ModelConfig& config, bool qk_norm, int64_t loss_chunk);

}  // namespace stepforge
