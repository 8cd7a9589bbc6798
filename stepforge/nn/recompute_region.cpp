// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stepforge/nn/function_data.h"
#include "stepforge/nn/functions.h"

namespace stepforge {

namespace {

using RegionInputs = std::vector<at::Tensor>;
using RegionBody = std::function<at::Tensor(const RegionInputs&)>;

struct RecomputedFunction : torch::autograd::Function<RecomputedFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, at::TensorList inputs,
                            const RegionBody* body) {
    ctx->save_for_backward(inputs.vec());
    save_value(*ctx, "body", *body);
    return (*body)(inputs.vec());  // grad mode is off here: nothing is kept
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    RegionInputs inputs;
    for (const at::Tensor& saved : ctx->get_saved_variables()) {
      inputs.push_back(saved.detach());
      inputs.back().set_requires_grad(inputs.back().is_floating_point());
    }
    {
      const at::AutoGradMode with_graph(true);
      const at::Tensor out = saved_value<RegionBody>(*ctx, "body")(inputs);
      torch::autograd::backward({out}, {gradients[0]});
    }
    torch::autograd::variable_list of_inputs;
    for (const at::Tensor& input : inputs) of_inputs.push_back(input.grad());
    of_inputs.emplace_back();  // of the body
    return of_inputs;
  }
};

}  // namespace

at::Tensor recompute_region(const Context& context, const char* name,
                            const std::function<at::Tensor(const std::vector<at::Tensor>&)>& body,
                            const std::vector<at::Tensor>& inputs) {
  const auto& recomputed = context.recomputed_regions;
  const bool recompute = std::find(recomputed.begin(), recomputed.end(), name) != recomputed.end();
  if (!recompute || !at::GradMode::is_enabled()) return body(inputs);
  return RecomputedFunction::apply(at::TensorList(inputs), &body);  // no other list counts as variables
}

at::Tensor recompute_region(const Context& context, const char* name,
                            const std::function<at::Tensor(const at::Tensor&)>& body, const at::Tensor& x) {
  return recompute_region(
      context, name, [body](const RegionInputs& inputs) { return body(inputs[0]); }, RegionInputs{x});
}

}  // namespace stepforge
