// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/mtp.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stepforge/nn/function_data.h"

namespace stepforge {

namespace {

/// Of the first `count` tokens, [count, 1]: whether the token `ahead` later belongs to another document, in which positions
/// began again.
at::Tensor ends_before(const at::Tensor& positions, int64_t count, int64_t ahead) {
  return positions.narrow(0, ahead, count).ne(positions.narrow(0, 0, count) + ahead).unsqueeze(1);
}

struct JoinLaterFunction : torch::autograd::Function<JoinLaterFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& later,
                            const at::Tensor& own, const BatchTensors* batch, int64_t ahead) {
    save_pointer(*ctx, "batch", batch);
    ctx->saved_data["ahead"] = ahead;
    const int64_t tokens = own.size(0);
    const int64_t width = own.size(1);
    const int64_t count = std::max<int64_t>(0, tokens - ahead);
    at::Tensor joined = at::empty({tokens, 2 * width}, own.options());
    const at::Tensor left = joined.narrow(1, 0, width);
    left.narrow(0, count, tokens - count).zero_();
    left.narrow(0, 0, count).copy_(later.narrow(0, tokens - count, count));
    if (count > 0) left.narrow(0, 0, count).masked_fill_(ends_before(batch->positions, count, ahead), 0);
    joined.narrow(1, width, width).copy_(own);
    return joined;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const auto* batch = saved_pointer<BatchTensors>(*ctx, "batch");
    const int64_t ahead = ctx->saved_data.at("ahead").toInt();
    const at::Tensor& joined = gradients[0];
    const int64_t tokens = joined.size(0);
    const int64_t width = joined.size(1) / 2;
    const int64_t count = std::max<int64_t>(0, tokens - ahead);
    at::Tensor later = at::empty({tokens, width}, joined.options());
    later.narrow(0, 0, tokens - count).zero_();
    const at::Tensor moved = later.narrow(0, tokens - count, count);
    moved.copy_(joined.narrow(0, 0, count).narrow(1, 0, width));
    if (count > 0) moved.masked_fill_(ends_before(batch->positions, count, ahead), 0);
    return {later, joined.narrow(1, width, width).contiguous(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor join_later(const at::Tensor& later, const at::Tensor& own, const BatchTensors& batch,
                      int64_t ahead) {
  return JoinLaterFunction::apply(later, own, &batch, ahead);
}

MtpBlock::MtpBlock(const ParameterLookup& parameters, const std::string& prefix, const std::string& last_norm,
                   const NormConstants& constants, int64_t ahead)
    : embedding_norm_(parameters(prefix + ".embedding_norm")),
      last_norm_(parameters(last_norm)),
      hidden_norm_(parameters(prefix + ".hidden_norm")),
      projection_(parameters(prefix + ".projection")),
      constants_(constants),
      ahead_(ahead) {}

Bundle MtpBlock::forward(const Bundle& inputs, const Context& context) {
  const at::Tensor embedded = post_norm(inputs.at(1), embedding_norm_, constants_);
  const at::Tensor last = post_norm(inputs.at(0), last_norm_, constants_);
  const at::Tensor hidden = post_norm(last, hidden_norm_, constants_);
  return {linear(join_later(embedded, hidden, *context.batch, ahead_), projection_)};
}

}  // namespace stepforge
