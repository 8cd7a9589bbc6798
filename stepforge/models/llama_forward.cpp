#include "stepforge/models/llama_forward.h"

namespace stepforge {

Model llama_forward(const ModelConfig& config, const ParameterLookup& parameters,
                    const ForwardOptions& options) {
  return decoder_forward(config, parameters, options, dense_layers(config, parameters, /*qk_norm=*/false));
}

}  // namespace stepforge
