// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/calls/low_rank.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include "stepforge/kernels/dropout_add.h"
#include "stepforge/kernels/linear_product.h"
#include "stepforge/kernels/tensor_check.h"
#include "stepforge/nn/call_entries.h"
#include "stepforge/nn/dropout_site.h"

namespace stepforge {

namespace {

void dropout(const CallRun& run) {
  const DropoutSite site(run, run.context.adapter_dropout, attributes_of<DropoutAttributes>(run.call).site,
                         run.operands[0].size(0));
  // The derivative of a dropout is the same dropout.
  dropout_add_backward(run.operands[0], run.context.adapter_dropout, site.key, site.coords, run.written[0]);
}

void dropout_backward(const CallRun& run) {
  const DropoutSite site(run, run.context.adapter_dropout, attributes_of<DropoutAttributes>(run.call).site,
                         run.gradients[0].size(0));
  dropout_add_backward(run.gradients[0], run.context.adapter_dropout, site.key, site.coords, run.written[0]);
}

/// One part of the call: the columns of h, of y or its gradient, and the matrix between them.
struct Part {
  at::Tensor h;
  at::Tensor y;
  at::Tensor weight;
  double scale;
};

Part part_of(const CallRun& run, std::size_t index, const at::Tensor& h, const at::Tensor& y) {
  const LowRankPart& part = attributes_of<LowRankAttributes>(run.call).parts.at(index);
  const at::Tensor weight = run.weight(index).value().detach();
  Part found{{}, y.narrow(1, part.column_begin, weight.size(0)), weight, part.scale};
  if (h.defined()) found.h = h.narrow(1, part.rank_begin, weight.size(1));
  return found;
}

void low_rank(const CallRun& run) {
  const at::Tensor sum = run.written[0];
  if (!sum.is_same(run.operands[1])) sum.copy_(run.operands[1]);
  for (std::size_t i = 0; i < run.weights.size(); ++i) {
    Part part = part_of(run, i, run.operands[0], sum);
    at::addmm_out(part.y, part.y, part.h, part.weight.t(), 1, part.scale);
  }
}

/// dB = scale dy^T h, in memory of its own.
at::Tensor weight_gradient(const Part& part) {
  at::Tensor gradient =
      at::empty(part.weight.sizes(), part.weight.options().dtype(compute_type(part.weight)));
  if (part.y.scalar_type() == gradient.scalar_type())
    at::mm_out(gradient, part.y.t(), part.h);
  else
    linear_weight_gradient(part.y.contiguous(), part.h.contiguous(), gradient, /*accumulate=*/false);
  return gradient.mul_(part.scale);
}

void low_rank_backward(const CallRun& run) {
  for (std::size_t i = 0; i < run.weights.size(); ++i) {
    Parameter& weight = run.weight(i);
    if (!weight.trained()) continue;
    const at::Tensor gradient = weight_gradient(part_of(run, i, run.operands[0], run.gradients[0]));
    if (run.summed() != nullptr) run.summed()->sum(gradient);
    weight.add_gradient(gradient);
  }
  if (!run.written.wanted(0)) return;
  for (std::size_t i = 0; i < run.weights.size(); ++i) {
    Part part = part_of(run, i, run.written[0], run.gradients[0]);
    at::addmm_out(part.h, part.h, part.y, part.weight, 0, part.scale);
  }
}

}  // namespace

extern const CallEntry kDropoutEntry = {&kDropout, dropout, dropout_backward};
extern const CallEntry kLowRankEntry = {&kLowRank, low_rank, low_rank_backward};

}  // namespace stepforge
