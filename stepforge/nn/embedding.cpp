// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/embedding.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stepforge/nn/function_data.h"
#include "stepforge/nn/functions.h"
#include "stepforge/nn/layers.h"

namespace stepforge {

namespace {

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& tokens,
                            const at::Tensor& weight, Parameter* parameter, const VocabularyPart& part) {
    ctx->save_for_backward({tokens});
    save_pointer(*ctx, "parameter", parameter);
    save_value(*ctx, "part", part);
    at::Tensor out = at::empty({tokens.size(0), weight.size(1)}, weight.options().requires_grad(false));
    embedding_forward(tokens, weight, out, part);
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    auto* parameter = saved_pointer<Parameter>(*ctx, "parameter");
    if (parameter->trained()) {
      at::Tensor tokens = ctx->get_saved_variables()[0];
      if (parameter->deferred()) tokens = tokens.clone();  // the batch may be freed before
      parameter->write([tokens, gradient = gradients[0], part = saved_value<VocabularyPart>(*ctx, "part")](
                           const at::Tensor& table_gradient, bool accumulate) {
        embedding_backward(tokens, gradient, table_gradient, accumulate, part);
      });
    }
    return {at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor embed(const at::Tensor& tokens, Parameter& table, const VocabularyPart& part) {
  return EmbeddingFunction::apply(tokens, table.value(), &table, part);
}

Bundle EmbeddingBlock::forward(const Bundle& inputs, const Context& context) {
  return {leave_layer(embed(context.batch->tokens, table_, part_), is_divided(table_), tensor_, context)};
}

}  // namespace stepforge
