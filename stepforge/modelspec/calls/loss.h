// SPDX-License-Identifier: Apache-2.0
// loss(x[, t]; weight[, B]) -> token_loss: the output projection and the cross-entropy, in chunks of tokens
// (kernels/cross_entropy.h). In training backward computes the losses too, so that the logits of a chunk are made once. With a
// low-rank adapter of the projection, t = A x is an ordinary linear(), and scale t B^T is added to the logits.
#pragma once

#include <algorithm>

#include "stepforge/base/format.h"
#include "stepforge/modelspec/calls/workspaces.h"

namespace stepforge {

struct LossAttributes {
  int64_t chunk = 0;          ///< tokens whose logits are in memory at once
  int64_t vocabulary = 0;     ///< of all ranks
  int64_t parts = 1;          ///< ranks that have a part of it
  bool whole_logits = false;  ///< these gather the logits
  double logit_cap = 0.0;     ///< logits are cap * tanh(x / cap); 0: not capped
  bool pairs = false;         ///< in training each token is weighed by the loss of its pair of answers
  int64_t soft_targets =
      0;                  ///< in training: tokens of a teacher that each label has (kernels/soft_targets.h)
  bool softened = false;  ///< at another temperature than 1: with a softmax of their own
  int64_t numbers_per_logit = 0;  ///< fp32 numbers that a loss of a plug-in allocates, with its gradient
  double adapter_scale = 0.0;     ///< of t B^T
};

/// What soft targets need: of all tokens ids, log-probabilities and the divergence; of a chunk, for each target, an int64 column, three fp32
/// values and one in fp64, with parts a mark too; and the sums of each token. If they are softened, the chunk's logits once more.
inline void add_soft_targets(const LossAttributes& loss, int64_t width, CallWorkspace& workspace) {
  const int64_t count = loss.soft_targets;
  if (count == 0) return;
  workspace.backward.token.fp32 += 2 * count + 1;
  workspace.backward.chunk_token.fp32 += 7 * count + 5;
  if (loss.parts > 1 && !loss.whole_logits) workspace.backward.chunk_token.fp32 += count / 4;
  if (!loss.softened) return;
  workspace.backward.chunk_token.compute += loss.whole_logits ? loss.vocabulary : width;
  workspace.backward.chunk_token.fp32 += 1;
}

namespace loss_row {

inline CallWorkspace workspace(const CallView& view) {
  const auto& loss = view.attributes<LossAttributes>();
  const CallWeight& weight = view.call.weights[0];
  CallWorkspace made;
  made.forward.chunk = made.backward.chunk = loss.chunk;
  made.forward.chunk_token.compute = weight.shape[0];
  if (loss.parts > 1 && loss.whole_logits) made.forward.chunk_token.compute += loss.vocabulary;
  if (loss.parts > 1 && !loss.whole_logits) made.forward.chunk_token.fp32 = 4 + loss.parts;
  made.backward.token.fp32 = loss.pairs ? 1 : 0;
  made.backward.chunk_token.fp32 = loss.numbers_per_logit * loss.vocabulary;
  add_soft_targets(loss, weight.shape[0], made);
  made.forward.narrow = bf16_product(weight.shape[1], weight.shape[0]);
  made.backward.narrow = std::max(made.forward.narrow, bf16_product(weight.shape[0], weight.shape[1]));
  for (const CallWeight& trained : view.call.weights)
    if (trained.trained)
      made.backward.narrow_token = std::max(made.backward.narrow_token, bf16_product(1, trained.shape[1]));
  // The gradient of B is summed over chunks before it is scaled.
  if (view.call.weights.size() > 1 && view.call.weights[1].trained)
    made.backward.fixed_fp32 = view.call.weights[1].elements();
  return made;
}

}  // namespace loss_row

inline constexpr CallKind kLoss = {
    .name = "loss",
    .rule = TypeRule::loss,
    .results =
        [](const CallView& view) {
          for (std::size_t i = 0; i < view.operands.size(); ++i)
            require_width(view, i, view.call.weights.at(i).shape.at(1));
          return std::vector<LayerValue>{
              {.name = "", .width = 1, .rows = view.operands[0].rows, .type = ElementType::fp32}};
        },
    .derivative_reads =
        [](const CallView& view) {
          return CallValues{.operands = view.operands.size() > 1 ? 0b11U : 1U, .results = 1};
        },
    .flops =
        [](const CallView& view) {
          double flops = 0;
          for (const CallWeight& weight : view.call.weights)
            flops += 2.0 * static_cast<double>(weight.elements());
          return flops;
        },
    .workspace = loss_row::workspace,
    .exchanges =
        [](const CallView& view) {
          const auto& loss = view.attributes<LossAttributes>();
          const auto exchange = [](ExchangeKind kind, Elements elements) {
            return Exchange{BlockAxis::tensor, kind, elements};
          };
          if (loss.parts == 1) return CallExchanges();
          if (loss.whole_logits)
            return CallExchanges{{exchange(ExchangeKind::gather, {loss.vocabulary})}, {}};
          // The largest logit of each rank, and two sums in fp64, with soft targets three; those of softened ones are further ones.
          const int64_t softmaxes = loss.softened ? 2 : 1;
          const int64_t sums = 4 * softmaxes + (loss.soft_targets > 0 ? 2 : 0);
          return CallExchanges{{exchange(ExchangeKind::max, {0, softmaxes * loss.parts}),
                                exchange(ExchangeKind::sum, {0, sums})},
                               {}};
        },
    .text =
        [](const CallView& view) {
          const auto& loss = view.attributes<LossAttributes>();
          const auto& weights = view.call.weights;
          return format("{} tokens at once{}{}{}", loss.chunk,
                        loss.logit_cap > 0 ? format(", cap {}", loss.logit_cap) : "",
                        loss.pairs              ? ", weighed by pairs"
                        : loss.soft_targets > 0 ? format(", {} tokens of a teacher{}", loss.soft_targets,
                                                         loss.softened ? ", softened" : "")
                                                : "",
                        weights.size() > 1 ? format(", rank {}", weights[1].shape[1]) : "");
        },
};

}  // namespace stepforge
