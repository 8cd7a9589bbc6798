// SPDX-License-Identifier: Apache-2.0
// The model families, one row of a table each: names, and properties in which the dense decoders differ. The
// specification, the forward code and config.json read them from here.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace stepforge {

struct ModelFamily {
  std::string_view name;             ///< model.family
  std::string_view hf_model_type;    ///< "model_type" in config.json
  std::string_view hf_architecture;  ///< "architectures" in config.json
  bool qk_norm;                      ///< RMSNorm of each head of q and k before the rotary embedding
  // The defaults of transformers for keys missing from config.json.
  int64_t hf_head_dim;  ///< 0: hidden_size / num_attention_heads
  int64_t hf_kv_heads;  ///< 0: num_attention_heads
  int64_t hf_max_position;
};

std::span<const ModelFamily> model_families();

/// Throws UsageError that lists the families if none has this name.
const ModelFamily& find_family(std::string_view name);

}  // namespace stepforge
