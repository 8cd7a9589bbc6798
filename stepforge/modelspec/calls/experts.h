// SPDX-License-Identifier: Apache-2.0
// The products of experts, of rows that are sorted by expert (kernels/expert_rows.h, grouped_product.h):
//
//   sort_rows(experts) -> slots, rows                            where the rows of each token are
//   expert_in(x, experts, slots, rows; matrices, bias)           -> of each row of a token its expert's product
//   take_rows(h, experts, slots, rows)                           -> of each row what its token has
//   sum_rows(y, experts, slots, rows)                            -> of each token the sum of its rows
//   expert_rows(h[, experts]; matrices)                          -> of each row its expert's product, times a scale
//   expert_out(h, experts, slots, rows, weights; matrices, bias) -> of each token the sum of the products of its rows
//
// The rows that go into expert_in, and those that come out of the products of expert_out, exist only while a call runs.
// expert_rows is A of an adapter of what expert_out multiplies by (low_rank.h); without the experts one matrix takes all rows.
// take_rows is for one A that all experts share beside expert_in: it takes tokens, and each row has what A makes of its token.
// expert_rows and sum_rows compute what expert_out does where something is done with the rows between.
#pragma once

#include <string>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/modelspec/calls/workspaces.h"

namespace stepforge {

struct ExpertsAttributes {
  int64_t experts = 0;   ///< of this rank
  int64_t chosen = 1;    ///< rows of each token
  bool stacked = false;  ///< the matrices are one tensor [experts, in, out]; otherwise [experts * out, in]
};

/// Of matrices [experts * out, in].
struct ExpertRowsAttributes {
  int64_t experts = 0;  ///< of this rank; 1: one matrix for all rows
  double scale = 1.0;
};

namespace experts_row {

/// Columns of the result.
inline int64_t out_width(const CallView& view) {
  const auto& [experts, chosen, stacked] = view.attributes<ExpertsAttributes>();
  const std::vector<int64_t>& shape = view.call.weights.at(0).shape;
  return stacked ? shape.at(2) : shape.at(0) / experts;
}

inline double flops(const CallView& view) {
  const int64_t chosen = view.attributes<ExpertsAttributes>().chosen;
  return 2.0 * static_cast<double>(chosen * view.operands[0].width * out_width(view));
}

/// Of rows of `width` elements, beside the gradient of the bias.
inline CallWorkspace workspace(const CallView& view, int64_t width) {
  const int64_t chosen = view.attributes<ExpertsAttributes>().chosen;
  CallWorkspace made;
  made.forward.token = for_rows_of(view.operands[0], {chosen * width});
  made.backward = made.forward;
  if (view.call.weights.size() > 1 && view.call.weights[1].trained)
    made.backward.fixed_fp32 = made.queued.fixed_fp32 = view.call.weights[1].elements();
  made.weights = made.backward;
  return made;
}

/// Of expert_rows: the gradients of operand and matrices are products of the gradient times the scale.
inline CallWorkspace scaled_gradient(const CallView& view) {
  const auto& [experts, scale] = view.attributes<ExpertRowsAttributes>();
  CallWorkspace made;
  if (scale == 1.0) return made;
  const LayerValue& rows = view.operands[0];
  made.backward.token = for_rows_of(rows, {rows.times * view.call.weights[0].shape.at(0) / experts});
  if (view.call.trains()) made.weights = made.backward;
  return made;
}

/// The operand is read for the gradient of the matrices.
inline uint32_t queued(const CallView& view) {
  return view.call.weights[0].trained ? 0b1101U : 0U;
}

inline std::string text(const CallView& view) {
  const auto& [experts, chosen, stacked] = view.attributes<ExpertsAttributes>();
  return format("{} experts, {} for each token", experts, chosen);
}

}  // namespace experts_row

inline constexpr CallKind kSortRows = {
    .name = "sort_rows",
    .results =
        [](const CallView& view) {
          LayerValue slots = beside(view.operands[0], 1, ElementType::int32);
          slots.times *= view.operands[0].width;
          return std::vector<LayerValue>{
              slots, beside(view.operands[0], view.operands[0].width, ElementType::int32)};
        },
};

inline constexpr CallKind kExpertIn = {
    .name = "expert_in",
    .rule = TypeRule::linear,
    .results =
        [](const CallView& view) {
          LayerValue made = view.operands[0];
          made.width = experts_row::out_width(view);
          made.times *= view.attributes<ExpertsAttributes>().chosen;
          return std::vector<LayerValue>{made};
        },
    .derivative_reads =
        [](const CallView& view) {
          return CallValues{.operands = view.call.weights[0].trained ? 0b1111U : 0b1110U};
        },
    .queued_operands = experts_row::queued,
    .queues_gradient = [](const CallView& view) { return view.call.weights[0].trained; },
    .flops = experts_row::flops,
    .workspace = [](const CallView& view) { return experts_row::workspace(view, view.operands[0].width); },
    .text = experts_row::text,
};

inline constexpr CallKind kTakeRows = {
    .name = "take_rows",
    .results =
        [](const CallView& view) {
          LayerValue made = view.operands[0];
          made.times *= view.attributes<ExpertsAttributes>().chosen;
          return std::vector<LayerValue>{made};
        },
    .derivative_reads = [](const CallView&) { return CallValues{.operands = 0b1110U}; },
};

inline constexpr CallKind kSumRows = {
    .name = "sum_rows",
    .results =
        [](const CallView& view) {
          LayerValue made = view.operands[0];
          made.times /= view.attributes<ExpertsAttributes>().chosen;
          return std::vector<LayerValue>{made};
        },
    .derivative_reads = [](const CallView&) { return CallValues{.operands = 0b1110U}; },
};

inline constexpr CallKind kExpertRows = {
    .name = "expert_rows",
    .rule = TypeRule::linear,
    .results =
        [](const CallView& view) {
          const CallWeight& matrices = view.call.weights.at(0);
          const int64_t experts = view.attributes<ExpertRowsAttributes>().experts;
          require_width(view, 0, matrices.shape.at(1));
          if (experts > 1 && view.operands.size() < 2)
            throw Error(format("{}: {} experts, but not which rows are theirs", view.call.name, experts));
          LayerValue made = view.operands[0];
          made.width = matrices.shape[0] / experts;
          return std::vector<LayerValue>{made};
        },
    .derivative_reads =
        [](const CallView& view) {
          const uint32_t experts = view.operands.size() > 1 ? 0b10U : 0U;
          return CallValues{.operands = experts | (view.call.trains() ? 1U : 0U)};
        },
    .queued_operands = [](const CallView& view) { return view.call.trains() ? 1U : 0U; },
    .queues_gradient = [](const CallView& view) { return view.call.trains(); },
    .flops =
        [](const CallView& view) {
          const int64_t of_one =
              view.call.weights[0].elements() / view.attributes<ExpertRowsAttributes>().experts;
          return 2.0 * static_cast<double>(view.operands[0].times * of_one);
        },
    .workspace = experts_row::scaled_gradient,
    .text =
        [](const CallView& view) {
          const int64_t experts = view.attributes<ExpertRowsAttributes>().experts;
          return view.operands.size() > 1 ? format("{} experts", experts) : std::string("all experts");
        },
};

inline constexpr CallKind kExpertOut = {
    .name = "expert_out",
    .rule = TypeRule::linear,
    .results =
        [](const CallView& view) {
          LayerValue made = view.operands[0];
          made.width = experts_row::out_width(view);
          made.times /= view.attributes<ExpertsAttributes>().chosen;
          return std::vector<LayerValue>{made};
        },
    .derivative_reads =
        [](const CallView& view) {
          const uint32_t weights = view.operands.size() > 4 ? 0b10000U : 0U;
          return CallValues{.operands = weights | (view.call.weights[0].trained ? 0b1111U : 0b1110U)};
        },
    .queued_operands = experts_row::queued,
    .queues_gradient = [](const CallView& view) { return view.call.weights[0].trained; },
    .flops = experts_row::flops,
    .workspace =
        [](const CallView& view) { return experts_row::workspace(view, experts_row::out_width(view)); },
    .text = experts_row::text,
};

}  // namespace stepforge
