// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention (arXiv:2405.04434) in a residual branch.
#pragma once

#include <cstdint>
#include <string>

#include "stepforge/kernels/rope.h"
#include "stepforge/nn/block.h"
#include "stepforge/nn/functions.h"
#include "stepforge/nn/layers.h"

namespace stepforge {

/// Of a projection through a latent: up(norm(down(x))).
struct LatentProjection {
  Parameter* down = nullptr;  ///< null: x goes into `up`
  Parameter* norm = nullptr;
  Parameter* up = nullptr;
};

/// What latent_qkv() needs besides its input; it must outlive the graph.
struct LatentWeights {
  LatentProjection q;
  LatentProjection
      kv;  ///< of whose `down` the last rows are the rotated part of the key, which is not normed
};

/// Packed queries, keys and values (kernels/latent_heads.h) of x [N, D]. One node of the graph: it saves x, each latent and its
/// norm's result; what goes between is made again or not needed.
at::Tensor latent_qkv(const at::Tensor& x, const LatentWeights& weights, const AttentionShape& shape,
                      const at::Tensor& positions, const RopeTable& rope);

/// out(attend(latent_qkv(norm(x)))). All heads are here; x may be a slice of the tokens.
class LatentAttentionLayer {
 public:
  /// `prefix` is "layers.3.attention"; the parameters of catalog/latent_layer.h are looked up. `shape` states heads and their
  /// sizes, scale and all else come from the traits. `rope` is of the rotated elements.
  LatentAttentionLayer(const ParameterLookup& parameters, const std::string& prefix,
                       const AttentionShape& shape, const LayerTraits& traits, double eps,
                       const RopeTable& rope, int64_t layer, TensorExchange tensor = {});
  at::Tensor forward(const at::Tensor& x, const Context& context);

 private:
  ResidualBranch branch_;
  LatentWeights weights_;
  Parameter& out_;
  AttentionShape shape_;
  const RopeTable& rope_;
  int64_t layer_;
  TensorExchange tensor_;
};

}  // namespace stepforge
