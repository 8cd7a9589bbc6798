// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/calls/residual.h"

#include <ATen/ops/add.h>

#include "stepforge/kernels/dropout_add.h"
#include "stepforge/kernels/gated_add.h"
#include "stepforge/nn/call_entries.h"
#include "stepforge/nn/dropout_site.h"

namespace stepforge {

namespace {

DropoutSite site_of(const CallRun& run, int64_t rows) {
  return {run, run.context.dropout, attributes_of<ResidualAttributes>(run.call).site, rows};
}

void residual_add(const CallRun& run) {
  const DropoutSite dropout = site_of(run, run.operands[0].size(0));
  dropout_add_forward(run.operands[0], run.operands[1], run.context.dropout, dropout.key, dropout.coords,
                      run.written[0]);
}

void residual_add_backward(const CallRun& run) {
  const DropoutSite dropout = site_of(run, run.gradients[0].size(0));
  dropout_add_backward(run.gradients[0], run.context.dropout, dropout.key, dropout.coords, run.written[0]);
}

void add(const CallRun& run) {
  at::Tensor sum = run.written[0];
  at::add_out(sum, run.operands[0], run.operands[1]);
}

void add_backward(const CallRun&) {}  // both gradients are that of the result

void gated_add(const CallRun& run) {
  gated_add_forward(run.operands[0], run.operands[1], run.operands[2].squeeze(1), run.written[0]);
}

void gated_add_backward(const CallRun& run) {
  stepforge::gated_add_backward(run.gradients[0], run.operands[1], run.operands[2].squeeze(1), run.written[1],
                                run.written[2].squeeze(1));
}

}  // namespace

extern const CallEntry kResidualAddEntry = {&kResidualAdd, residual_add, residual_add_backward};
extern const CallEntry kAddEntry = {&kAdd, add, add_backward};
extern const CallEntry kGatedAddEntry = {&kGatedAdd, gated_add, gated_add_backward};

}  // namespace stepforge
