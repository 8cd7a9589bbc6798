// SPDX-License-Identifier: Apache-2.0
// A block as one node of a graph of autograd, for tests that compare its gradients with those of other operations.
#pragma once

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "stepforge/nn/block.h"

namespace stepforge::testing {

struct PassHolder : torch::CustomClassHolder {
  explicit PassHolder(BackwardPass of_pass) : backward(std::move(of_pass)) {}
  BackwardPass backward;
};

struct BlockNode : torch::autograd::Function<BlockNode> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx, at::TensorList inputs,
                                                const at::Tensor& /*anchor*/, Block* block,
                                                const Context* context) {
    ForwardPass pass = block->forward(inputs.vec(), *context, /*trains=*/true);
    torch::autograd::variable_list indices;
    for (const at::Tensor& output : pass.outputs)
      if (!output.is_floating_point()) indices.push_back(output);
    ctx->mark_non_differentiable(indices);
    ctx->saved_data["pass"] =
        c10::IValue::make_capsule(c10::make_intrusive<PassHolder>(std::move(pass.backward)));
    return pass.outputs;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    // Taken, so that nothing else holds what backward frees.
    const auto holder = ctx->saved_data.at("pass").toCapsule();
    const auto run = std::exchange(static_cast<PassHolder*>(holder.get())->backward, nullptr);
    torch::autograd::variable_list of_inputs = run(gradients);
    of_inputs.resize(of_inputs.size() + 3);  // of the anchor, the block and the context
    return of_inputs;
  }
};

/// The outputs of the block, which autograd differentiates unless it is off.
inline Bundle forward_in_graph(Block& block, const Bundle& inputs, const Context& context) {
  if (!at::GradMode::is_enabled()) return block.forward(inputs, context, /*trains=*/false).outputs;
  // Perhaps no input has a gradient, but a weight does.
  const at::Tensor anchor = at::empty({0}).set_requires_grad(true);
  return BlockNode::apply(at::TensorList(inputs), anchor, &block, &context);
}

}  // namespace stepforge::testing
