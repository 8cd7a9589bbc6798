// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/calls/latent_heads.h"

#include "stepforge/kernels/latent_heads.h"
#include "stepforge/nn/call_entries.h"

namespace stepforge {

namespace {

void latent_heads(const CallRun& run) {
  latent_heads_forward(run.operands[0], run.operands[1], run.operands[2],
                       attributes_of<LatentHeadsAttributes>(run.call).shape, run.context.batch->positions,
                       *run.resources.rope, run.written[0]);
}

void latent_heads_backward(const CallRun& run) {
  stepforge::latent_heads_backward(run.gradients[0], attributes_of<LatentHeadsAttributes>(run.call).shape,
                                   run.context.batch->positions, *run.resources.rope, run.written[0],
                                   run.written[1], run.written[2]);
}

}  // namespace

extern const CallEntry kLatentHeadsEntry = {&kLatentHeads, latent_heads, latent_heads_backward};

}  // namespace stepforge
