#include "stepforge/models/qwen3_forward.h"

namespace stepforge {

Model qwen3_forward(const ModelConfig& config, const ParameterLookup& parameters,
                    const ForwardOptions& options) {
  return decoder_forward(config, parameters, options, dense_layers(config, parameters, /*qk_norm=*/true));
}

}  // namespace stepforge
