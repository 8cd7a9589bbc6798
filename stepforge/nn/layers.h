// SPDX-License-Identifier: Apache-2.0
// The layers of a model. They look parameters up by name, read sizes from tensors, and know no ranks. If their
// matrices are divided over ranks, `tensor` combines what the parts compute.
#pragma once

#include <string>
#include <utility>

#include "stepforge/nn/block.h"
#include "stepforge/nn/functions.h"

namespace stepforge {

/// Pre-norm multi-head attention with a residual: x + out(attend(rotate(qkv(norm(x))))).
class AttentionLayer {
 public:
  /// `prefix` is "layers.3.attention"; the parameters norm, qkv, out, and with `qk_norm` q_norm and k_norm
  /// are looked up.
  AttentionLayer(const ParameterLookup& parameters, const std::string& prefix, const AttentionShape& shape,
                 double eps, bool qk_norm, const RopeTable& rope, int64_t layer, TensorExchange tensor = {},
                 ContextExchange exchange = {});
  at::Tensor forward(const at::Tensor& x, const Context& context);

 private:
  Parameter& norm_;
  Parameter& qkv_;
  Parameter& out_;
  Parameter* q_norm_ = nullptr;
  Parameter* k_norm_ = nullptr;
  AttentionShape shape_;
  double eps_;
  const RopeTable& rope_;
  int64_t layer_;
  TensorExchange tensor_;
  ContextExchange exchange_;
};

/// Pre-norm SwiGLU MLP with a residual: x + down(swiglu(gate_up(norm(x)))).
class MlpLayer {
 public:
  MlpLayer(const ParameterLookup& parameters, const std::string& prefix, double eps, int64_t layer,
           TensorExchange tensor = {});
  at::Tensor forward(const at::Tensor& x, const Context& context);

 private:
  Parameter& norm_;
  Parameter& gate_up_;
  Parameter& down_;
  double eps_;
  int64_t layer_;
  TensorExchange tensor_;
};

class EmbeddingBlock : public Block {
 public:
  explicit EmbeddingBlock(Parameter& table, TensorExchange tensor = {})
      : table_(table), part_(vocabulary_part(table.spec())), tensor_(std::move(tensor)) {}
  Bundle forward(const Bundle& inputs, const Context& context) override;

 private:
  Parameter& table_;
  VocabularyPart part_;
  TensorExchange tensor_;
};

/// Final norm and output projection with the cross-entropy, in chunks of tokens: the full logits are never
/// materialized.
class LinearCrossEntropyHead : public Head {
 public:
  /// `weight` [vocab, width] is the head's own or the embedding's. `chunk`: tokens per chunk. `z_weight`: of the z-loss
  /// in gradients (kernels/cross_entropy.h).
  LinearCrossEntropyHead(Parameter& norm, Parameter& weight, double eps, int64_t chunk,
                         TensorExchange tensor = {}, double z_weight = 0.0)
      : norm_(norm),
        weight_(weight),
        eps_(eps),
        chunk_(chunk),
        part_(vocabulary_part(weight.spec())),
        tensor_(std::move(tensor)),
        z_weight_(z_weight) {}
  LossResult loss_with_gradients(const Bundle& inputs, const Context& context,
                                 const at::Tensor& scale) override;
  LossResult loss(const Bundle& inputs, const Context& context, bool with_logits) override;
  at::Tensor last_logits(const Bundle& inputs, const Context& context) override;

 private:
  /// Logits of the whole vocabulary, from those of this part.
  at::Tensor of_all_parts(const at::Tensor& logits) const;
  /// The exchanges with the other parts of the vocabulary; empty ones if there are none.
  TensorExchange parts() const { return is_divided(weight_) ? tensor_ : TensorExchange(); }

  Parameter& norm_;
  Parameter& weight_;
  double eps_;
  int64_t chunk_;
  VocabularyPart part_;
  TensorExchange tensor_;
  double z_weight_;
};

}  // namespace stepforge
