// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/list_head.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "stepforge/base/error.h"
#include "stepforge/kernels/cross_entropy.h"
#include "stepforge/kernels/linear_product.h"
#include "stepforge/kernels/tensor_check.h"
#include "stepforge/modelspec/call_kind.h"
#include "stepforge/modelspec/calls/loss.h"
#include "stepforge/nn/vocabulary_part.h"

namespace stepforge {

namespace {

const Call& loss_of(const CallList& list) {
  if (list.empty() || list.calls.back().kind->rule != TypeRule::loss)
    throw Error("the calls of a head must end with a loss");
  return list.calls.back();
}

void require_logits(const Call& call) {
  if (!call.is(kLoss))
    throw UsageError("a reward model (model.head = \"score\") has a score and no logits: it writes no text");
}

CallList before_loss(CallList list) {
  list.outputs = loss_of(list).operands;
  list.calls.pop_back();
  return list;
}

Bundle results_of(ListBlock& block, const at::Tensor& input, const Context& context) {
  return block.forward({input}, context, /*trains=*/false).outputs;
}

}  // namespace

ListHead::ListHead(const CallList& training, const CallList& generation, const ParameterLookup& parameters,
                   std::shared_ptr<const LayerResources> resources)
    : call_(loss_of(training)),
      weight_(parameters(call_.weights.front().name)),
      adapter_(call_.weights.size() > 1 ? &parameters(call_.weights[1].name) : nullptr),
      resources_(resources),
      block_(training, generation, parameters, resources),
      states_(before_loss(training), before_loss(generation), parameters, std::move(resources)) {}

LossResult ListHead::loss_with_gradients(const Bundle& inputs, const Context& context,
                                         const at::Tensor& scale) {
  const ForwardPass made = block_.forward({inputs.at(0)}, context, /*trains=*/true);
  Bundle gradients = made.backward({scale});
  return {made.outputs.front().view({-1}), at::Tensor(), std::move(gradients)};
}

LossResult ListHead::loss(const Bundle& inputs, const Context& context, bool with_logits) {
  const at::NoGradGuard no_grad;
  const TopLogits& top = context.top;
  LossResult result;
  if (!with_logits && top.count == 0) {
    result.token_loss = results_of(block_, inputs.at(0), context).front().view({-1});
    return result;
  }
  require_logits(call_);
  const auto& attributes = attributes_of<LossAttributes>(call_);
  const Bundle states = results_of(states_, inputs.at(0), context);
  const at::Tensor& hidden = states.front();
  const at::Tensor weight = weight_.value().detach();
  LinearCrossEntropyOutputs outputs;
  outputs.token_loss = at::empty({hidden.size(0)}, hidden.options().dtype(compute_type(hidden)));
  if (with_logits)
    outputs.logits = at::empty({hidden.size(0), weight.size(0)}, hidden.options().dtype(at::kFloat));
  if (top.count > 0) {
    outputs.top_logits = at::empty({hidden.size(0), top.count}, hidden.options().dtype(at::kFloat));
    outputs.top_ids = at::empty_like(outputs.top_logits, at::kInt);
    outputs.top_vocabulary = top.vocabulary;
  }
  linear_cross_entropy(hidden, weight, context.batch->labels, {.cap = attributes.logit_cap}, attributes.chunk,
                       outputs, vocabulary_part(weight_.spec()),
                       attributes.parts > 1 ? resources_->tensor : TensorExchange(), term_of(states));
  result.token_loss = outputs.token_loss;
  if (with_logits) result.logits = of_all(outputs.logits);
  result.top_logits = outputs.top_logits;
  result.top_ids = outputs.top_ids;
  return result;
}

at::Tensor ListHead::last_logits(const Bundle& inputs, const Context& context) {
  require_logits(call_);
  const at::NoGradGuard no_grad;
  const at::Tensor& hidden = inputs.at(0);
  const int64_t rows = context.batch->host.rows;
  const int64_t count = hidden.size(0) / rows;
  const at::Tensor last = hidden.view({rows, count, hidden.size(1)}).select(1, count - 1).contiguous();
  const Bundle states = results_of(states_, last, context);
  const at::Tensor weight = weight_.value().detach();
  const at::Tensor logits = at::empty({rows, weight.size(0)}, states.front().options());
  linear_product(states.front(), weight, logits);
  if (adapter_ != nullptr) add_low_rank(logits, term_of(states));
  const double cap = attributes_of<LossAttributes>(call_).logit_cap;
  if (cap > 0) cap_logits(logits, cap);
  return of_all(logits.to(at::kFloat));
}

LowRankLogits ListHead::term_of(const Bundle& states) const {
  if (adapter_ == nullptr) return {};
  return {.values = states.at(1),
          .weight = adapter_->value().detach(),
          .factor = attributes_of<LossAttributes>(call_).adapter_scale};
}

at::Tensor ListHead::of_all(const at::Tensor& logits) const {
  if (attributes_of<LossAttributes>(call_).parts == 1) return logits;
  return of_all_parts(logits, vocabulary_part(weight_.spec()), resources_->tensor);
}

}  // namespace stepforge
