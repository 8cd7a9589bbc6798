// SPDX-License-Identifier: Apache-2.0
// The calls of low-rank adapters (LoRA, arXiv:2106.09685) beside the product y = W x of a frozen matrix:
//
//   dropout(x)                           -> x with some elements 0, the others divided by 1 - p (kernels/dropout_add.h)
//   low_rank(h, y[, experts]; B0, B1, ...) -> y + scale_i B_i h_i in the columns of each part i; h = A x is an ordinary linear()
//
// A packed matrix (q, k and v) has a part for each of its tensors that has an adapter. In place on y. With the experts of each
// token, the rows of h and y are sorted by expert, and B_i has the matrices of all experts, one below the other: h is that of
// expert_in(x, ...; A) (experts.h).
#pragma once

#include <algorithm>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/modelspec/calls/workspaces.h"

namespace stepforge {

struct DropoutAttributes {
  uint64_t site = 0;    ///< the number of the dropout in the model
  int64_t channel = 0;  ///< of x's first one, where ranks have parts of them
};

inline constexpr CallKind kDropout = {
    .name = "dropout",
    .results = [](const CallView& view) { return std::vector<LayerValue>{view.operands[0]}; },
};

/// The columns of h and of y that the call's weight of the same index connects, and the factor of its product.
struct LowRankPart {
  int64_t rank_begin = 0;
  int64_t column_begin = 0;
  double scale = 1.0;
};

struct LowRankAttributes {
  std::vector<LowRankPart> parts;
  int64_t experts = 1;  ///< of this rank, each with its own rows of B and of the values
};

namespace low_rank_row {

/// The operand that says which expert each row belongs to.
inline constexpr std::size_t kExperts = 2;

/// Rows of the matrix of one expert, or of the only one.
inline int64_t rows(const CallView& view, const CallWeight& weight) {
  return weight.shape.at(0) / view.attributes<LowRankAttributes>().experts;
}

/// The gradient of B is scaled, and perhaps summed over ranks, before it is added to that of the parameter. If operands are
/// bf16, a part's columns are copied for it: of one expert at a time, to which all rows may belong.
inline CallWorkspace workspace(const CallView& view) {
  const int64_t times = view.operands[0].times;
  CallWorkspace made;
  for (const CallWeight& weight : view.call.weights) {
    if (!weight.trained) continue;
    made.weights.fixed_fp32 = std::max(made.weights.fixed_fp32, weight.elements());
    made.queued.fixed_fp32 += weight.elements();
    made.weights.narrow_token =
        std::max(made.weights.narrow_token,
                 times * (rows(view, weight) + weight.shape[1] + bf16_product(1, weight.shape[1])));
  }
  return made;
}

inline double flops(const CallView& view) {
  int64_t sum = 0;  // of the matrices of one expert
  for (const CallWeight& weight : view.call.weights) sum += rows(view, weight) * weight.shape.at(1);
  return 2.0 * static_cast<double>(view.operands[0].times * sum);
}

inline std::string text(const CallView& view) {
  std::string parts;
  for (const CallWeight& weight : view.call.weights)
    parts += format("{}{}", parts.empty() ? "rank " : ", ", weight.shape[1]);
  return parts;
}

}  // namespace low_rank_row

inline constexpr CallKind kLowRank = {
    .name = "low_rank",
    .rule = TypeRule::linear_add,
    .results =
        [](const CallView& view) {
          const auto& [parts, experts] = view.attributes<LowRankAttributes>();
          if (experts > 1 && view.operands.size() <= low_rank_row::kExperts)
            throw Error(format("{}: {} experts, but not which rows are theirs", view.call.name, experts));
          for (std::size_t i = 0; i < parts.size(); ++i) {
            const std::vector<int64_t>& shape = view.call.weights.at(i).shape;
            if (parts[i].rank_begin + shape.at(1) > view.operands[0].width ||
                parts[i].column_begin + low_rank_row::rows(view, view.call.weights[i]) >
                    view.operands[1].width)
              throw Error(format("{}: {} [{}, {}] does not fit between {} and {} columns", view.call.name,
                                 view.call.weights[i].name, shape[0], shape[1], view.operands[0].width,
                                 view.operands[1].width));
          }
          return std::vector<LayerValue>{view.operands[1]};
        },
    .derivative_reads =
        [](const CallView& view) {
          const uint32_t experts = view.operands.size() > low_rank_row::kExperts ? 0b100U : 0U;
          return CallValues{.operands = experts | (view.call.trains() ? 1U : 0U)};
        },
    .overwrites = [](const CallView&) { return 1; },
    .passes_gradient = [](const CallView&) { return 2U; },
    .queued_operands = [](const CallView&) { return 0U; },
    .queues_gradient = [](const CallView&) { return false; },
    .flops = low_rank_row::flops,
    .workspace = low_rank_row::workspace,
    .exchanges = weight_sums,
    .text = low_rank_row::text,
};

}  // namespace stepforge
