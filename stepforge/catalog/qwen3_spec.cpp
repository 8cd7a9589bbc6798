#include "stepforge/catalog/qwen3_spec.h"

#include "stepforge/catalog/decoder_spec.h"

namespace stepforge {

ModelSpec qwen3_spec(const ModelConfig& config, int64_t loss_chunk) {
  return decoder_spec(config, /*qk_norm=*/true, loss_chunk);
}

}  // namespace stepforge
