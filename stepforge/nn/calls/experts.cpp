// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/calls/experts.h"

#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include "stepforge/kernels/expert_bias.h"
#include "stepforge/kernels/expert_rows.h"
#include "stepforge/kernels/grouped_product.h"
#include "stepforge/kernels/tensor_check.h"
#include "stepforge/nn/call_entries.h"
#include "stepforge/nn/wide_linear.h"

namespace stepforge {

namespace {

/// From the operands experts, slots and rows.
ExpertRows rows_of(const CallRun& run) {
  return {expert_offsets(run.operands[1], attributes_of<ExpertsAttributes>(run.call).experts),
          run.operands[2].view({-1}), run.operands[3]};
}

/// The matrices of all experts [E, out, in], or of stacked ones [E, in, out]; or their gradients.
at::Tensor by_expert(const CallRun& run, const at::Tensor& weight) {
  const auto& [experts, chosen, stacked] = attributes_of<ExpertsAttributes>(run.call);
  return stacked ? weight : weight.view({experts, -1, weight.size(1)});
}

/// out = rows matrices^T, and the gradients of its parts. What is a product by one layout of the matrices is by the other the
/// gradient of an input.
void product(const CallRun& run, const at::Tensor& rows, const ExpertRows& where, const at::Tensor& out) {
  const auto multiply =
      attributes_of<ExpertsAttributes>(run.call).stacked ? grouped_input_gradient : grouped_product;
  multiply(rows, by_expert(run, run.weight(0).value().detach()), where.offsets, out);
}

void input_gradient(const CallRun& run, const at::Tensor& gradient, const ExpertRows& where,
                    const at::Tensor& out) {
  const auto multiply =
      attributes_of<ExpertsAttributes>(run.call).stacked ? grouped_product : grouped_input_gradient;
  multiply(gradient, by_expert(run, run.weight(0).value().detach()), where.offsets, out);
}

void weight_gradient(bool stacked, const at::Tensor& gradient, const at::Tensor& in, const ExpertRows& where,
                     const at::Tensor& target, bool accumulate) {
  const auto experts = static_cast<int64_t>(where.offsets.size()) - 1;
  const at::Tensor matrices = stacked ? target : target.view({experts, -1, target.size(1)});
  grouped_weight_gradient(stacked ? in : gradient, stacked ? gradient : in, where.offsets, matrices,
                          accumulate);
}

/// Of results, or their gradients, the columns to which this rank adds a bias: ranks may share an expert's hidden units.
at::Tensor biased_columns(const CallRun& run, const at::Tensor& results) {
  const TensorSlice held = run.weight(1).spec().slice_of(0);
  return results.narrow(1, held.offsets.at(1), held.sizes.at(1));
}

/// Returns the gradient, which a queue may hold.
at::Tensor add_bias_gradient(const CallRun& run, const at::Tensor& of_rows, const ExpertRows& where,
                             const RowFactors& factors) {
  Parameter& bias = run.weight(1);
  if (!bias.trained()) return {};
  const at::Tensor sums = at::empty(bias.value().sizes(), of_rows.options().dtype(compute_type(of_rows)));
  expert_bias_gradient(of_rows, where.offsets, factors, sums);
  bias.add_gradient(sums);
  return sums;
}

void sort_rows(const CallRun& run) {
  const ExpertRows rows = sort_by_expert(run.operands[0], attributes_of<ExpertsAttributes>(run.call).experts);
  run.written[0].copy_(rows.slots.view({-1, 1}));
  run.written[1].copy_(rows.rows);
}

void sort_rows_backward(const CallRun&) {}

void expert_in(const CallRun& run) {
  const ExpertRows where = rows_of(run);
  const at::Tensor rows = gather_rows(run.operands[0], where);
  product(run, rows, where, run.written[0]);
  if (run.weights.size() > 1)
    add_expert_bias(run.written[0], where.offsets, widen(run.weight(1).value()), {});
}

void expert_in_backward(const CallRun& run) {
  const ExpertRows where = rows_of(run);
  const at::Tensor& gradient = run.gradients[0];
  at::Tensor of_bias;
  if (run.weights.size() > 1) of_bias = add_bias_gradient(run, gradient, where, {});
  if (run.weight(0).trained()) {
    const bool stacked = attributes_of<ExpertsAttributes>(run.call).stacked;
    run.weight(0).write(
        [stacked, gradient, x = run.operands[0], where](const at::Tensor& target, bool accumulate) {
          weight_gradient(stacked, gradient, gather_rows(x, where), where, target, accumulate);
        });
  }
  if (!run.written.wanted(0)) return;
  const at::Tensor x_gradient = run.written[0];
  const at::Tensor of_rows = at::empty({where.count(), x_gradient.size(1)}, gradient.options());
  input_gradient(run, gradient, where, of_rows);
  combine_rows(of_rows, where, x_gradient);
}

void take_rows(const CallRun& run) {
  gather_rows(run.operands[0], rows_of(run), run.written[0]);
}

void take_rows_backward(const CallRun& run) {
  combine_rows(run.gradients[0], rows_of(run), run.written[0]);
}

void sum_rows(const CallRun& run) {
  combine_rows(run.operands[0], rows_of(run), run.written[0]);
}

void sum_rows_backward(const CallRun& run) {
  gather_rows(run.gradients[0], rows_of(run), run.written[0]);
}

/// The matrices of expert_rows by expert, and where the rows of each are: all rows are those of one matrix without experts.
struct RowsOfExperts {
  std::vector<int64_t> offsets;
  at::Tensor matrices;  ///< [E, out, in]
  double scale;

  RowsOfExperts(const CallRun& run, int64_t row_count) {
    const auto& attributes = attributes_of<ExpertRowsAttributes>(run.call);
    const at::Tensor weight = run.weight(0).value().detach();
    offsets = run.operands.size() > 1 ? expert_offsets(run.operands[1], attributes.experts)
                                      : std::vector<int64_t>{0, row_count};
    matrices = weight.view({attributes.experts, -1, weight.size(1)});
    scale = attributes.scale;
  }
};

at::Tensor times_scale(const at::Tensor& rows, double scale) {
  return scale == 1.0 ? rows : rows.mul(scale);
}

void expert_rows(const CallRun& run) {
  at::Tensor out = run.written[0];
  const RowsOfExperts of(run, out.size(0));
  grouped_product(run.operands[0], of.matrices, of.offsets, out);
  if (of.scale != 1.0) out.mul_(of.scale);
}

void expert_rows_backward(const CallRun& run) {
  const at::Tensor& gradient = run.gradients[0];
  const RowsOfExperts of(run, gradient.size(0));
  if (run.weight(0).trained()) {
    run.weight(0).write([gradient, in = run.operands[0], offsets = of.offsets, scale = of.scale,
                         shape = of.matrices.sizes().vec()](const at::Tensor& target, bool accumulate) {
      grouped_weight_gradient(times_scale(gradient, scale), in, offsets, target.view(shape), accumulate);
    });
  }
  if (!run.written.wanted(0)) return;
  const at::Tensor product = times_scale(gradient, of.scale);
  grouped_input_gradient(product, of.matrices, of.offsets, run.written[0]);
}

void expert_out(const CallRun& run) {
  const ExpertRows where = rows_of(run);
  const at::Tensor out = run.written[0];
  const at::Tensor rows = at::empty({where.count(), out.size(1)}, out.options());
  product(run, run.operands[0], where, rows);
  if (run.weights.size() > 1)
    add_expert_bias(biased_columns(run, rows), where.offsets, widen(run.weight(1).value()),
                    {run.operands[4], where.slots});
  combine_rows(rows, where, out);
}

void expert_out_backward(const CallRun& run) {
  const ExpertRows where = rows_of(run);
  const at::Tensor& gradient = run.gradients[0];
  at::Tensor of_bias;
  {
    const at::Tensor of_rows = gather_rows(gradient, where);
    input_gradient(run, of_rows, where, run.written[0]);
    if (run.weights.size() > 1) {
      const at::Tensor biased = biased_columns(run, of_rows);
      const at::Tensor weights_gradient = run.written[4];
      weights_gradient.zero_();
      add_factor_gradients(biased, where.offsets, widen(run.weight(1).value()), where.slots,
                           weights_gradient);
      of_bias = add_bias_gradient(run, biased, where, {run.operands[4], where.slots});
    }
  }
  if (!run.weight(0).trained()) return;
  const bool stacked = attributes_of<ExpertsAttributes>(run.call).stacked;
  run.weight(0).write(
      [stacked, gradient, hidden = run.operands[0], where](const at::Tensor& target, bool accumulate) {
        weight_gradient(stacked, gather_rows(gradient, where), hidden, where, target, accumulate);
      });
}

}  // namespace

extern const CallEntry kSortRowsEntry = {&kSortRows, sort_rows, sort_rows_backward};
extern const CallEntry kExpertInEntry = {&kExpertIn, expert_in, expert_in_backward};
extern const CallEntry kTakeRowsEntry = {&kTakeRows, take_rows, take_rows_backward};
extern const CallEntry kSumRowsEntry = {&kSumRows, sum_rows, sum_rows_backward};
extern const CallEntry kExpertRowsEntry = {&kExpertRows, expert_rows, expert_rows_backward};
extern const CallEntry kExpertOutEntry = {&kExpertOut, expert_out, expert_out_backward};

}  // namespace stepforge
