// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/calls/rotary.h"

#include "stepforge/nn/call_entries.h"
#include "stepforge/nn/norm_gradient.h"

namespace stepforge {

namespace {

QkNorm norm_of(const CallRun& run) {
  if (run.call.weights.empty()) return {};
  const auto& rotary = attributes_of<RotaryAttributes>(run.call);
  return {run.weight(0).value().detach(), run.weight(1).value().detach(), rotary.eps, rotary.offset};
}

const RopeTable& table_of(const CallRun& run) {
  return *(attributes_of<RotaryAttributes>(run.call).local ? run.resources.local_rope : run.resources.rope);
}

void rotary(const CallRun& run) {
  const QkNorm norm = norm_of(run);
  qk_norm_rope_forward(run.operands[0], attributes_of<RotaryAttributes>(run.call).shape,
                       run.context.batch->positions, table_of(run), norm, run.written[0],
                       norm.present() ? run.written[1] : at::Tensor());
}

void rotary_backward(const CallRun& run) {
  const at::Tensor gradient = run.written[0];
  if (!gradient.is_same(run.gradients[0])) gradient.copy_(run.gradients[0]);
  const QkNorm norm = norm_of(run);
  const auto rotate_back = [&](const at::Tensor& qkv, const at::Tensor& rstd, const at::Tensor& q,
                               const at::Tensor& k) {
    qk_norm_rope_backward(gradient, qkv, attributes_of<RotaryAttributes>(run.call).shape,
                          run.context.batch->positions, table_of(run), norm, rstd, q, k);
  };
  if (!norm.present()) return rotate_back({}, {}, {}, {});
  NormGradient q(run.weight(0), run.summed());
  NormGradient k(run.weight(1), run.summed());
  rotate_back(run.operands[0], run.results[1], q.target(), k.target());
  q.finish();
  k.finish();
}

}  // namespace

extern const CallEntry kRotaryEntry = {&kRotary, rotary, rotary_backward};

}  // namespace stepforge
