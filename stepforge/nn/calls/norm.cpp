// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/calls/norm.h"

#include "stepforge/kernels/rms_norm.h"
#include "stepforge/nn/call_entries.h"
#include "stepforge/nn/norm_gradient.h"

namespace stepforge {

namespace {

void rms_norm(const CallRun& run) {
  const auto& norm = attributes_of<NormAttributes>(run.call);
  rms_norm_forward(run.operands[0], run.weight(0).value(), norm.eps, run.written[0],
                   run.written[1].view({-1}), norm.offset);
}

void rms_norm_backward(const CallRun& run) {
  const auto& norm = attributes_of<NormAttributes>(run.call);
  NormGradient gradient(run.weight(0), run.summed());
  stepforge::rms_norm_backward(run.gradients[0], run.operands[0], run.weight(0).value(),
                               run.results[1].view({-1}), run.summand, run.written[0], gradient.target(),
                               norm.offset);
  gradient.finish();
}

}  // namespace

extern const CallEntry kRmsNormEntry = {&kRmsNorm, rms_norm, rms_norm_backward};

}  // namespace stepforge
