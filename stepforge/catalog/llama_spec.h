// Llama 2, 3, 3.1, 3.2, 3.3 (Touvron et al. 2023; Grattafiori et al. 2024).
#pragma once

#include "stepforge/config/config.h"
#include "stepforge/modelspec/model_spec.h"

namespace stepforge {

ModelSpec llama_spec(const ModelConfig& config, int64_t loss_chunk);

}  // namespace stepforge
