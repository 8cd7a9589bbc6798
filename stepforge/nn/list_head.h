// SPDX-License-Identifier: Apache-2.0
// The head of a model as a list of calls.
#pragma once

#include <memory>

#include "stepforge/kernels/cross_entropy.h"
#include "stepforge/nn/list_block.h"

namespace stepforge {

/// Runs a list whose last call is a loss (modelspec/calls/loss.h), or the score of a reward model (modelspec/calls/score.h), which
/// has no logits: what asks for them throws UsageError.
class ListHead : public Head {
 public:
  /// As ListBlock. Throws Error unless both lists end with a loss.
  ListHead(const CallList& training, const CallList& generation, const ParameterLookup& parameters,
           std::shared_ptr<const LayerResources> resources);
  LossResult loss_with_gradients(const Bundle& inputs, const Context& context,
                                 const at::Tensor& scale) override;
  LossResult loss(const Bundle& inputs, const Context& context, bool with_logits) override;
  at::Tensor last_logits(const Bundle& inputs, const Context& context) override;

 private:
  /// Logits of the whole vocabulary, from those of this part.
  at::Tensor of_all(const at::Tensor& logits) const;

  /// The low-rank term of the logits, if the loss has one. `states`: what states_ makes.
  LowRankLogits term_of(const Bundle& states) const;

  Call call_;  ///< the loss
  Parameter& weight_;
  Parameter* adapter_;  ///< B; null without an adapter of the head
  std::shared_ptr<const LayerResources> resources_;
  ListBlock block_;
  ListBlock states_;  ///< the calls before the loss
};

}  // namespace stepforge
