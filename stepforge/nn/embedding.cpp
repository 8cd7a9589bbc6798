// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/embedding.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stepforge/nn/function_data.h"
#include "stepforge/nn/functions.h"

namespace stepforge {

namespace {

struct EmbedArguments {
  Parameter* table = nullptr;
  VocabularyPart part;
  double factor = 1.0;
};

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& tokens,
                            const at::Tensor& weight, const EmbedArguments* arguments) {
    ctx->save_for_backward({tokens});
    save_value(*ctx, "arguments", *arguments);
    at::Tensor out = at::empty({tokens.size(0), weight.size(1)}, weight.options().requires_grad(false));
    embedding_forward(tokens, weight, out, arguments->part, arguments->factor);
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const auto& arguments = saved_value<EmbedArguments>(*ctx, "arguments");
    Parameter* parameter = arguments.table;
    if (parameter->trained()) {
      at::Tensor tokens = ctx->get_saved_variables()[0];
      if (parameter->deferred()) tokens = tokens.clone();  // the batch may be freed before
      parameter->write([tokens, gradient = gradients[0], part = arguments.part, factor = arguments.factor](
                           const at::Tensor& table_gradient, bool accumulate) {
        embedding_backward(tokens, gradient, table_gradient, accumulate, part, factor);
      });
    }
    return {at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor embed(const at::Tensor& tokens, Parameter& table, const VocabularyPart& part, double factor) {
  const EmbedArguments arguments{&table, part, factor};
  return EmbeddingFunction::apply(tokens, table.value(), &arguments);
}

}  // namespace stepforge
