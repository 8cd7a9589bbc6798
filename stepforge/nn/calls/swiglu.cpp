// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/calls/swiglu.h"

#include "stepforge/kernels/swiglu.h"
#include "stepforge/nn/call_entries.h"

namespace stepforge {

namespace {

void swiglu(const CallRun& run) {
  const auto& [activation, clamped] = attributes_of<SwigluAttributes>(run.call);
  const at::Tensor& gate_up = run.operands[0];
  if (run.operands.size() == 1) return swiglu_forward(gate_up, run.written[0], activation);
  const at::Tensor slots = run.operands[2].view({-1});
  if (clamped)
    clamped_swiglu_forward(gate_up, run.operands[1], slots, *clamped, run.written[0]);
  else
    expert_swiglu_forward(gate_up, run.operands[1], slots, run.written[0]);
}

void swiglu_backward(const CallRun& run) {
  const auto& [activation, clamped] = attributes_of<SwigluAttributes>(run.call);
  const at::Tensor& gradient = run.gradients[0];
  const at::Tensor& gate_up = run.operands[0];
  if (run.operands.size() == 1)
    return stepforge::swiglu_backward(gradient, gate_up, run.written[0], activation);
  const at::Tensor slots = run.operands[2].view({-1});
  if (clamped)
    clamped_swiglu_backward(gradient, gate_up, run.operands[1], slots, *clamped, run.written[0],
                            run.written[1]);
  else
    expert_swiglu_backward(gradient, gate_up, run.operands[1], slots, run.written[0], run.written[1]);
}

}  // namespace

extern const CallEntry kSwigluEntry = {&kSwiglu, swiglu, swiglu_backward};

}  // namespace stepforge
