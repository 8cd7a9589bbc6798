// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/calls/linear.h"

#include <ATen/ops/empty.h>

#include "stepforge/kernels/bias.h"
#include "stepforge/kernels/linear_product.h"
#include "stepforge/kernels/tensor_check.h"
#include "stepforge/nn/call_entries.h"
#include "stepforge/nn/norm_gradient.h"
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
  bias_forward(sum, run.weight(0).value());
}

void bias_backward(const CallRun& run) {
  NormGradient gradient(run.weight(0), run.summed());
  stepforge::bias_backward(run.gradients[0], gradient.target());
  gradient.finish();
}

}  // namespace

extern const CallEntry kLinearEntry = {&kLinear, linear, linear_backward};
extern const CallEntry kBiasEntry = {&kBias, bias, bias_backward};

}  // namespace stepforge
