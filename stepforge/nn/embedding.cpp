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
      embedding_backward(ctx->get_saved_variables()[0], gradients[0], parameter->gradient(),
                         parameter->written(), saved_value<VocabularyPart>(*ctx, "part"));
      parameter->mark_written();
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
