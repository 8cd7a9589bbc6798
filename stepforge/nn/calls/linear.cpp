// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/calls/linear.h"

#include <optional>

#include <ATen/ops/mm.h>

#include "stepforge/kernels/bias.h"
#include "stepforge/nn/calls/entries.h"
#include "stepforge/nn/norm_gradient.h"
#include "stepforge/nn/slices.h"

namespace stepforge::calls {

namespace {

void product(at::Tensor out, const at::Tensor& left, const at::Tensor& right) {
  at::mm_out(out, left, right);
}

/// Of all tokens, whose slices arrive while the product of those at hand is made.
void product_of_slices(const CallRun& run) {
  const at::Tensor weight = run.weight(0).value().t();
  const at::Tensor result = run.written[0];
  ArrivingSlices(run.operands[0], run.resources.tensor).each([&](const at::Tensor& slice, int64_t begin) {
    product(result.narrow(0, begin, slice.size(0)), slice, weight);
  });
}

/// The shares of other ranks' slices leave while the product is made.
void product_to_slice(const CallRun& run) {
  const at::Tensor weight = run.weight(0).value().t();
  SumOfSlices sum(run.written[0], run.resources.tensor);
  sum.start([&](int64_t begin, const at::Tensor& share) {
    product(share, run.operands[0].narrow(0, begin, share.size(0)), weight);
  });
  sum.finish();
}

/// The input arrives beside the product for its gradient, and that leaves beside the product for the weight's.
void backward_of_slices(const CallRun& run) {
  Parameter& weight = run.weight(0);
  const at::Tensor& gradient = run.gradients[0];
  std::optional<ArrivingSlices> input;
  if (weight.trained()) input.emplace(run.operands[0], run.resources.tensor);
  SumOfSlices sum(run.written[0], run.resources.tensor);
  const bool wanted = run.written.wanted(0);
  if (wanted)
    sum.start([&](int64_t begin, const at::Tensor& share) {
      product(share, gradient.narrow(0, begin, share.size(0)), weight.value());
    });
  if (weight.trained()) weight.add_product(gradient, input->all());
  if (wanted) sum.finish();
}

void backward_to_slice(const CallRun& run) {
  Parameter& weight = run.weight(0);
  ArrivingSlices gradient(run.gradients[0], run.resources.tensor);
  if (run.written.wanted(0))
    gradient.each([&](const at::Tensor& slice, int64_t begin) {
      product(run.written[0].narrow(0, begin, slice.size(0)), slice, weight.value());
    });
  if (weight.trained()) weight.add_product(gradient.all(), run.operands[0]);
}

}  // namespace

void linear(const CallRun& run) {
  const LinearAttributes attributes = linear_attributes(run.call);
  if (attributes.arriving) return product_of_slices(run);
  if (attributes.leaving) return product_to_slice(run);
  product(run.written[0], run.operands[0], run.weight(0).value().t());
}

void linear_backward(const CallRun& run) {
  const LinearAttributes attributes = linear_attributes(run.call);
  if (attributes.arriving) return backward_of_slices(run);
  if (attributes.leaving) return backward_to_slice(run);
  Parameter& weight = run.weight(0);
  if (weight.trained()) weight.add_product(run.gradients[0], run.operands[0]);
  if (run.written.wanted(0)) product(run.written[0], run.gradients[0], weight.value());
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

}  // namespace stepforge::calls
