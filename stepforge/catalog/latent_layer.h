// SPDX-License-Identifier: Apache-2.0
// Parameters and calls of multi-head latent attention (arXiv:2405.04434), which takes the place of attention. All heads are
// on one rank.
//
// With width D, H heads of d = P + R elements for scores and V for values, and latents of size r for keys and values and s for
// queries, saved per token:
//
//   compute dtype: the result of the norm (D), each latent and its norm's result (2 r + 2 s), queries, keys and values
//                  (2 H d + H V), the result of attention (H V)
//   4 bytes each:  rstd of the norms (2, or 3 with a latent of queries), log-sums of attention (H)
//
#pragma once

#include <cstdint>
#include <string>

#include "stepforge/catalog/layers.h"

namespace stepforge {

struct LatentDims {
  int64_t width = 0;
  int64_t heads = 0;
  int64_t q_rank = 0;   ///< s; 0: queries have no latent
  int64_t kv_rank = 0;  ///< r
  int64_t plain = 0;    ///< P, elements of a head that do not know their position
  int64_t rotated = 0;  ///< R, those that do; of a key the same in all heads
  int64_t value = 0;    ///< V

  int64_t head_dim() const { return plain + rotated; }
  AttentionDims attention() const { return {width, heads, heads, head_dim(), value}; }
};

/// norm; q [H d, D], or q_down [s, D], q_latent_norm and q_up [H d, s]; kv_down [r + R, D], kv_latent_norm and kv_up
/// [H (P + V), r]; attention, output projection out [D, H V], residual add. Arguments and region as attention_layer(); `tensor` divides nothing, but may have slices
/// of the tokens.
LayerSpec latent_attention_layer(const std::string& prefix, const std::string& hf_prefix,
                                 const LatentDims& dims, const LayerTraits& traits, double depth_std,
                                 bool dropout, const TensorParallel& tensor = {});

}  // namespace stepforge
