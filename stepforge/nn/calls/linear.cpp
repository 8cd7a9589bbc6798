// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/calls/linear.h"

#include <utility>

#include <ATen/ops/empty.h>

#include "stepforge/kernels/bias.h"
#include "stepforge/kernels/linear_product.h"
#include "stepforge/kernels/tensor_check.h"
#include "stepforge/nn/call_entries.h"
#include "stepforge/nn/slices.h"

namespace stepforge {

namespace {

void linear(const CallRun& run) {
  const LinearAttributes attributes = linear_attributes(run.call);
  const at::Tensor weight = run.weight(0).value();
  if (attributes.gathers_input)
    return product_of_slices(run.operands[0], weight, run.resources.tensor, run.written[0]);
  if (attributes.scatters_result)
    return product_to_slice(run.operands[0], weight, run.resources.tensor, run.written[0]);
  linear_product(run.operands[0], weight, run.written[0]);
}

/// The gradient of a weight that is whole on every rank, of which each has a share.
void add_summed_product(const CallRun& run) {
  Parameter& weight = run.weight(0);
  const at::Tensor& value = weight.value();
  const at::Tensor sum = at::empty(value.sizes(), value.options().dtype(compute_type(value)));
  linear_weight_gradient(run.gradients[0], run.operands[0], sum, /*accumulate=*/false);
  run.summed()->sum(sum);
  weight.add_gradient(sum);
}

void linear_backward(const CallRun& run) {
  const LinearAttributes attributes = linear_attributes(run.call);
  Parameter& weight = run.weight(0);
  if (attributes.gathers_input)
    return product_of_slices_backward(run.gradients[0], run.operands[0], weight, run.resources.tensor,
                                      run.written[0]);
  if (attributes.scatters_result)
    return product_to_slice_backward(run.gradients[0], run.operands[0], weight, run.resources.tensor,
                                     run.written[0]);
  if (weight.trained() && run.summed() != nullptr)
    add_summed_product(run);
  else if (weight.trained())
    weight.add_product(run.gradients[0], run.operands[0]);
  if (!run.written.wanted(0)) return;
  linear_input_gradient(run.gradients[0], weight.value(), run.summand, run.written[0]);
}

void bias(const CallRun& run) {
  const at::Tensor sum = run.written[0];
  if (!sum.is_same(run.operands[0])) sum.copy_(run.operands[0]);
  if (run.weights.size() == 1) return bias_forward(sum, run.weight(0).value());
  int64_t column = 0;
  for (const Parameter* part : run.weights) {
    const at::Tensor values = part->value().detach();
    sum.narrow(1, std::exchange(column, column + values.numel()), values.numel()).add_(values);
  }
}

/// Sums all columns at once, in memory of their own: gradients of parameters may be written later.
void bias_backward(const CallRun& run) {
  const at::Tensor& like = run.weight(0).value();
  const at::Tensor sums = at::empty({run.gradients[0].size(1)}, like.options().dtype(compute_type(like)));
  stepforge::bias_backward(run.gradients[0], sums);
  int64_t column = 0;
  for (Parameter* part : run.weights) {
    const int64_t elements = part->value().numel();
    const at::Tensor gradient = sums.narrow(0, std::exchange(column, column + elements), elements);
    if (!part->trained()) continue;
    if (run.summed() != nullptr) run.summed()->sum(gradient);
    part->add_gradient(gradient);
  }
}

}  // namespace

extern const CallEntry kLinearEntry = {&kLinear, linear, linear_backward};
extern const CallEntry kBiasEntry = {&kBias, bias, bias_backward};

}  // namespace stepforge
