// SPDX-License-Identifier: Apache-2.0
// The sizes and constants of attention, for specifications and for kernels/attention.h.
#pragma once

#include <cstdint>

namespace stepforge {

struct AttentionShape {
  int64_t heads = 0;
  int64_t kv_heads = 0;  ///< divides heads
  int64_t head_dim = 0;
  double scale = 1.0;  ///< usually 1 / sqrt(head_dim)
  /// A query sees itself and the window - 1 keys before it (Beltagy et al., "Longformer", 2020); 0: all before it.
  int64_t window = 0;
  double cap = 0.0;       ///< of scores (Gemma Team, "Gemma 2", 2024); 0: none
  int64_t value_dim = 0;  ///< of the heads of v and of the result; 0: head_dim

  int64_t group() const { return heads / kv_heads; }
  int64_t value_size() const { return value_dim > 0 ? value_dim : head_dim; }
  int64_t q_width() const { return heads * head_dim; }
  int64_t k_width() const { return kv_heads * head_dim; }
  int64_t v_width() const { return kv_heads * value_size(); }
  int64_t qkv_width() const { return q_width() + k_width() + v_width(); }
  int64_t out_width() const { return heads * value_size(); }
};

}  // namespace stepforge
