#include "stepforge/catalog/llama_spec.h"

#include "stepforge/catalog/decoder_spec.h"

namespace stepforge {

ModelSpec llama_spec(const ModelConfig& config, int64_t loss_chunk) {
  return decoder_spec(config, /*qk_norm=*/false, loss_chunk);
}

}  // namespace stepforge
