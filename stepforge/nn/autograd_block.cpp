// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/autograd_block.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

namespace stepforge {

namespace {

/// The graph of one forward pass.
struct Graph {
  Bundle leaves;                       ///< the inputs
  torch::autograd::edge_list outputs;  ///< where gradients enter; they keep no output alive

  Bundle backward(const Bundle& output_gradients) {
    Bundle gradients;
    for (const at::Tensor& gradient : output_gradients)
      if (gradient.defined()) gradients.push_back(gradient);
    torch::autograd::Engine::get_default_engine().execute(std::exchange(outputs, {}), gradients,
                                                          /*keep_graph=*/false,
                                                          /*create_graph=*/false, /*accumulate_grad=*/true);
    Bundle of_inputs;
    for (at::Tensor& leaf : leaves) {
      of_inputs.push_back(std::move(leaf.mutable_grad()));
      if (!of_inputs.back().defined() && leaf.is_floating_point())  // a block need not use what it takes
        of_inputs.back() = at::zeros_like(leaf);
    }
    return of_inputs;
  }
};

}  // namespace

ForwardPass AutogradBlock::forward(const Bundle& inputs, const Context& context, bool trains) {
  Graph graph;
  for (const at::Tensor& input : inputs) {
    graph.leaves.push_back(input.detach());
    graph.leaves.back().set_requires_grad(trains && input.is_floating_point());
  }
  const at::AutoGradMode mode(trains);
  ForwardPass pass;
  for (const at::Tensor& output : compute(graph.leaves, context)) {
    pass.outputs.push_back(output.detach());
    if (trains && output.is_floating_point())
      graph.outputs.push_back(torch::autograd::impl::gradient_edge(output));
  }
  if (trains)
    pass.backward = [graph = std::move(graph)](const Bundle& gradients) mutable {
      return graph.backward(gradients);
    };
  return pass;
}

}  // namespace stepforge
