// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/calls/score.h"

#include <algorithm>

#include <ATen/TensorOperators.h>

#include "stepforge/base/error.h"
#include "stepforge/nn/call_entries.h"
#include "stepforge/nn/preference_step.h"
#include "stepforge/nn/wide_linear.h"

namespace stepforge {

namespace {

/// Calls `use(part)`, which takes a part of the rows of a tensor, for one part after the other.
template <typename Use>
void for_parts(int64_t tokens, const Use& use) {
  for (int64_t begin = 0; begin < tokens; begin += kScoreTokens) {
    const int64_t count = std::min(kScoreTokens, tokens - begin);
    use([&](const at::Tensor& rows) { return rows.narrow(0, begin, count); });
  }
}

void score(const CallRun& run) {
  const at::Tensor value = run.written[0];
  const at::Tensor& x = run.operands[0];
  for_parts(value.size(0),
            [&](const auto& part) { wide_product(part(x), run.weight(0).value(), part(value)); });
  value.neg_();
}

/// How much the score of a token counts depends on those of its pair of answers.
void score_backward(const CallRun& run) {
  if (run.context.preferences == nullptr)
    throw Error("a score learns from pairs of answers, and there are none");
  const at::Tensor& value = run.results[0];
  const at::Tensor weights =
      run.context.preferences->weigh(value.view({-1}), run.resources.exchange.sum).view({-1, 1});
  const at::Tensor gradient = weights.mul_(run.gradients[0]).neg_().to(value.scalar_type());
  Parameter& weight = run.weight(0);
  if (weight.trained()) {
    const at::Tensor& x = run.operands[0];
    for_parts(gradient.size(0), [&](const auto& part) {
      weight.write_now([&](const at::Tensor& target, bool accumulate) {
        wide_weight_gradient(part(gradient), part(x), target, accumulate);
      });
    });
  }
  if (!run.written.wanted(0)) return;
  const at::Tensor x = run.written[0];
  for_parts(gradient.size(0),
            [&](const auto& part) { wide_input_gradient(part(gradient), weight.value(), part(x)); });
}

}  // namespace

extern const CallEntry kScoreEntry = {&kScore, score, score_backward};

}  // namespace stepforge
