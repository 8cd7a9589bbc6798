// SPDX-License-Identifier: Apache-2.0
// The layers of a model. They look parameters up by name, read sizes from tensors, and know no ranks. If their
// matrices are divided over ranks, `tensor` combines what the parts compute.
#pragma once

#include <string>
#include <utility>

#include "stepforge/kernels/loss_chunk.h"
#include "stepforge/nn/block.h"
#include "stepforge/nn/functions.h"

namespace stepforge {

/// A residual branch around a layer: x + dropout(post_norm(layer(norm(x)))), of which the traits say which norms
/// there are.
class ResidualBranch {
 public:
  /// Looks up prefix.norm and prefix.post_norm. `site`: the number of the dropout in the model.
  ResidualBranch(const ParameterLookup& parameters, const std::string& prefix, const LayerTraits& traits,
                 double eps, uint64_t site);
  /// {the input of the layer, x of the residual path}. `tensor` must outlive the graph.
  std::pair<at::Tensor, at::Tensor> enter(const at::Tensor& x, const TensorExchange& tensor,
                                          const Context& context) const;
  /// From the result of the layer, and the residual path. May change the result.
  at::Tensor leave(const at::Tensor& result, const at::Tensor& residual, const TensorExchange& tensor,
                   const Context& context) const;

 private:
  Parameter* norm_;       ///< null if the input is not normed
  Parameter* post_norm_;  ///< null if the result is not
  NormConstants constants_;
  uint64_t site_;
};

class EmbeddingBlock : public Block {
 public:
  /// Rows of the table times `factor`: of the tokens, and of those further ahead that the batch has.
  explicit EmbeddingBlock(Parameter& table, TensorExchange tensor = {}, double factor = 1.0)
      : table_(table), part_(vocabulary_part(table.spec())), tensor_(std::move(tensor)), factor_(factor) {}
  Bundle forward(const Bundle& inputs, const Context& context) override;

 private:
  at::Tensor embedded(const at::Tensor& tokens, const Context& context);

  Parameter& table_;
  VocabularyPart part_;
  TensorExchange tensor_;
  double factor_;
};

/// What a head computes, besides its sizes.
struct HeadTraits {
  NormConstants norm;
  double logit_cap = 0.0;  ///< logits are cap * tanh(x / cap); 0: not capped
  /// Of the losses in training, as in LossGradient (kernels/cross_entropy.h).
  double z_weight = 0.0;
  double smoothing = 0.0;
  LossFunction loss = {};
};

/// Final norm and output projection with the cross-entropy, in chunks of tokens: the full logits are never
/// materialized.
class LinearCrossEntropyHead : public Head {
 public:
  /// `weight` [vocab, width] is the head's own or the embedding's. `chunk`: tokens per chunk.
  LinearCrossEntropyHead(Parameter& norm, Parameter& weight, const HeadTraits& traits, int64_t chunk,
                         TensorExchange tensor = {})
      : norm_(norm),
        weight_(weight),
        traits_(traits),
        chunk_(chunk),
        part_(vocabulary_part(weight.spec())),
        tensor_(std::move(tensor)) {}
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
  HeadTraits traits_;
  int64_t chunk_;
  VocabularyPart part_;
  TensorExchange tensor_;
};

}  // namespace stepforge
