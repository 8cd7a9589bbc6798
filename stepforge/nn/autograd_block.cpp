// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/autograd_block.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

namespace stepforge {

namespace {

/// The graph of one forward pass.
struct Graph {
  Bundle leaves;                       ///< the inputs
  torch::autograd::edge_list outputs;  ///< where their gradients enter; they keep no output alive

  Bundle backward(const Bundle& output_gradients) {
    const torch::autograd::edge_list edges = std::exchange(outputs, {});
    torch::autograd::edge_list roots;
    Bundle gradients;
    for (std::size_t i = 0; i < edges.size(); ++i) {
      if (!output_gradients.at(i).defined()) continue;
      roots.push_back(edges[i]);
      gradients.push_back(output_gradients[i]);
    }
    torch::autograd::Engine::get_default_engine().execute(roots, gradients,
                                                          /*keep_graph=*/false,
                                                          /*create_graph=*/false, /*accumulate_grad=*/true);
    Bundle of_inputs;
    for (at::Tensor& leaf : leaves) of_inputs.push_back(input_gradient(std::move(leaf.mutable_grad()), leaf));
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
    if (trains)
      graph.outputs.push_back(output.is_floating_point() ? torch::autograd::impl::gradient_edge(output)
                                                         : torch::autograd::Edge());
  }
  if (trains)
    pass.backward = [graph = std::move(graph)](const Bundle& gradients) mutable {
      return graph.backward(gradients);
    };
  return pass;
}

}  // namespace stepforge
