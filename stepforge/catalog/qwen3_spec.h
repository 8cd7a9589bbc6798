// Qwen3 dense models (Yang et al. 2025): Llama with a norm on each head of q and k, and an explicit head
// size.
#pragma once

#include "stepforge/config/config.h"
#include "stepforge/modelspec/model_spec.h"

namespace stepforge {

ModelSpec qwen3_spec(const ModelConfig& config, int64_t loss_chunk);

}  // namespace stepforge
