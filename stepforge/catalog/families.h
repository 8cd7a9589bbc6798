// SPDX-License-Identifier: Apache-2.0
// The model families. A family is a row of one table: its names, and the facts in which it differs from the
// other dense decoders. The specification, the forward code and config.json read them from here.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace stepforge {

struct ModelFamily {
  std::string_view name;             ///< model.family
  std::string_view hf_model_type;    ///< "model_type" in config.json
  std::string_view hf_architecture;  ///< "architectures" in config.json
  bool qk_norm;                      ///< each head of q and k is normed before the rotary embedding
  // What transformers takes for keys that config.json leaves out.
  int64_t hf_head_dim;  ///< 0: hidden_size / num_attention_heads
  int64_t hf_kv_heads;  ///< 0: num_attention_heads
  int64_t hf_max_position;
};

std::span<const ModelFamily> model_families();

/// Throws UsageError listing the families if none has that name.
const ModelFamily& find_family(std::string_view name);

}  // namespace stepforge
