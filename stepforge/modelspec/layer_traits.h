// SPDX-License-Identifier: Apache-2.0
// What one layer of a decoder computes, besides its sizes. The specification, the costs and the forward code
// of a layer follow from it; families and config.json give it (catalog/families.h).
#pragma once

#include <cstdint>

namespace stepforge {

/// What an RMSNorm of queries and keys, before the rotary embedding, spans.
enum class QkNormScope : uint8_t {
  none,
  head,      ///< each head by itself, with one weight [head_dim] for all
  all_heads  ///< all query heads together, and all key heads, with a weight of their width
};

/// Which tensors of a residual branch are normed.
enum class NormPlaces : uint8_t {
  before,  ///< its input
  after,   ///< its result, before it is added
  around   ///< both
};

/// The activation of the gate of an MLP: down(activation(gate x) * up x).
enum class Activation : uint8_t {
  silu,
  gelu_tanh  ///< 0.5 g (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3)))
};

/// Limits of gate and up, and the factor of the gate in its sigmoid (gpt-oss; kernels/swiglu.h).
struct ClampedSwiglu {
  double limit = 7.0;
  double alpha = 1.702;
};

/// How the input of attention becomes queries, keys and values.
enum class AttentionProjection : uint8_t {
  direct,
  latent_keys,  ///< keys and values by way of a low-rank latent (multi-head latent attention, DeepSeek-V2)
  latent        ///< queries too
};

/// How a router scores experts, and which of them it offers to a token (kernels/router.h).
enum class RouterKind : uint8_t {
  softmax,
  softmax_groups,  ///< of the groups with the largest scores (DeepSeek-V2)
  sigmoid_groups   ///< sigmoid, with a correction; of the groups whose two largest are largest (DeepSeek-V3)
};

struct LayerTraits {
  int64_t layer = 0;  ///< its index in the model
  NormPlaces norms = NormPlaces::before;
  double norm_eps = 1e-6;
  /// Norms scale by offset + weight: 1 in Gemma, where weights start at 0.
  double norm_offset = 0.0;
  AttentionProjection projection = AttentionProjection::direct;
  bool qkv_bias = false;
  bool out_bias = false;  ///< of the projection after attention
  bool sinks = false;     ///< each head has a learned score beside those of the keys (kernels/attention.h)
  QkNormScope qk_norm = QkNormScope::none;
  /// Scores are q . k * query_scale, then with a cap c = score_cap > 0: c tanh(score / c).
  double query_scale = 1.0;
  double score_cap = 0.0;
  int64_t window = 0;  ///< a query sees itself and the window - 1 keys before it; 0: all before it
  Activation activation = Activation::silu;
  bool experts = false;  ///< a mixture of experts in place of the MLP
  RouterKind router = RouterKind::softmax;
  /// Experts and router have biases, and the activation of the experts has limits (kernels/swiglu.h). The matrices of all
  /// experts are one tensor.
  bool biased_experts = false;

  bool latent() const { return projection != AttentionProjection::direct; }
  /// Whether the router has a correction, which is state (UnitSpec::state).
  bool corrected() const { return experts && router == RouterKind::sigmoid_groups; }
  bool norms_before() const { return norms != NormPlaces::after; }
  bool norms_after() const { return norms != NormPlaces::before; }
};

}  // namespace stepforge
