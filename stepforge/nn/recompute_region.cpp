// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stepforge/nn/function_data.h"
#include "stepforge/nn/functions.h"

namespace stepforge {

namespace {

using RegionBody = std::function<at::Tensor(const at::Tensor&)>;

struct RecomputedFunction : torch::autograd::Function<RecomputedFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const RegionBody* body) {
    ctx->save_for_backward({x});
    save_value(*ctx, "body", *body);
    return (*body)(x);  // grad mode is off here: nothing is kept
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    at::Tensor x = ctx->get_saved_variables()[0].detach();
    x.set_requires_grad(true);
    {
      const at::AutoGradMode with_graph(true);
      const at::Tensor out = saved_value<RegionBody>(*ctx, "body")(x);
      torch::autograd::backward({out}, {gradients[0]});
    }
    return {x.grad(), at::Tensor()};
  }
};

}  // namespace

at::Tensor recompute_region(const Context& context, const char* name,
                            const std::function<at::Tensor(const at::Tensor&)>& body, const at::Tensor& x) {
  const auto& recomputed = context.recomputed_regions;
  const bool recompute = std::find(recomputed.begin(), recomputed.end(), name) != recomputed.end();
  if (!recompute || !at::GradMode::is_enabled()) return body(x);
  return RecomputedFunction::apply(x, &body);
}

}  // namespace stepforge
