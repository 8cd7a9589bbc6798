#include "models/qwen3/spec.h"

#include "models/decoder_spec.h"

namespace stepforge {

ModelSpec qwen3_spec(const ModelConfig& config, int64_t loss_chunk) {
  return decoder_spec(config, /*qk_norm=*/true, loss_chunk);
}

}  // namespace stepforge
