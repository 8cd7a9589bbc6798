// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/gradient_queue.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include "stepforge/modelspec/calls/linear.h"
#include "stepforge/modelspec/calls/swiglu.h"
#include "stepforge/nn/list_block.h"
#include "tests/nn/tiny_model.h"
#include "tests/support/in_graph.h"

namespace stepforge::testing {
namespace {

class GradientQueueTest : public ::testing::Test {
 protected:
  GradientQueueTest() : weight(&spec, at::zeros({3, 5}, at::kFloat), at::full({3, 5}, 77.0)) {}

  ParameterSpec spec{"weight", {3, 5}, {}};
  Parameter weight;
  GradientQueue queue;
};

TEST_F(GradientQueueTest, WritesInTheOrderOfTheAdditions) {
  // In fp32, (2^24 + 1) - 2^24 is 0 and any other order gives 1.
  const auto add = [&](double value) { weight.add_gradient(at::full({3, 5}, value)); };
  weight.defer_to(&queue);
  add(0x1p24);
  add(1.0);
  add(-0x1p24);
  weight.defer_to(nullptr);
  EXPECT_TRUE(weight.gradient().eq(77.0).all().item<bool>());
  queue.run();
  EXPECT_TRUE(weight.gradient().eq(0.0).all().item<bool>());
}

TEST_F(GradientQueueTest, WhetherAWriteAddsIsDecidedWhenItIsDone) {
  weight.defer_to(&queue);
  weight.add_gradient(at::ones({3, 5}));
  weight.defer_to(nullptr);
  weight.add_gradient(at::full({3, 5}, 2.0));
  queue.run();
  EXPECT_TRUE(weight.gradient().eq(3.0).all().item<bool>());
}

TEST_F(GradientQueueTest, AProductIsThatOfTheGradientAndTheInput) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor left = (random_tensor({7, 3}, 1) * 2).round().to(dtype);  // integers: exact in any order
    const at::Tensor right = (random_tensor({7, 5}, 2) * 2).round().to(dtype);
    weight.start_gradient();
    weight.defer_to(&queue);
    weight.add_product(left, right);
    weight.defer_to(nullptr);
    queue.run();
    EXPECT_TRUE(at::equal(weight.gradient(), at::mm(left.t().to(at::kFloat), right.to(at::kFloat))));
  }
}

TEST_F(GradientQueueTest, KeepsTheInputOfALinearCallAndItsGradientOnly) {
  TinyModel tiny(tiny_config());
  Parameter& down = tiny.parameter("layers.0.mlp.down");
  ListWriter writer("test");
  const int gate_up = writer.input({"x", 2 * tiny.config.ffn_dim});
  const int hidden = writer.call(kSwiglu, "swiglu", {gate_up}, {}, SwigluAttributes());
  const CallList calls = writer.finish({writer.call(kLinear, "down", {hidden}, {&down.spec()})});
  ListBlock block(calls, calls, tiny.store.lookup(), std::make_shared<const LayerResources>());
  const BatchTensors batch(made_up_batch(1, 24, tiny.config.vocab_size));
  Context context;
  context.batch = &batch;
  install_cpu_allocator();
  const int64_t before = cpu_memory().live_bytes;
  const int64_t kept = 24 * (tiny.config.ffn_dim + tiny.config.dim) * 4;
  {
    at::Tensor source = random_tensor({24, 2 * tiny.config.ffn_dim}, 3);
    const Bundle made = forward_in_graph(block, {source.set_requires_grad(true)}, context);
    down.defer_to(&queue);
    torch::autograd::backward(made, {random_tensor({24, tiny.config.dim}, 4)});
    down.defer_to(nullptr);
  }
  EXPECT_EQ(cpu_memory().live_bytes - before, kept);
  queue.run();
  EXPECT_EQ(cpu_memory().live_bytes, before);
}

TEST_F(GradientQueueTest, AProductDoesNotKeepTheGraphOfItsInput) {
  at::Tensor source = random_tensor({7, 5}, 2);
  at::Tensor right = source.set_requires_grad(true) * 2;
  const std::weak_ptr<torch::autograd::Node> producer = right.grad_fn();
  weight.defer_to(&queue);
  weight.add_product(random_tensor({7, 3}, 1), right);
  weight.defer_to(nullptr);
  right.reset();
  EXPECT_TRUE(producer.expired());
  queue.run();
}

TEST_F(GradientQueueTest, FreesWhatAWriteHoldsBeforeTheNextOne) {
  int held = 0;
  const auto holder = [&held] {
    ++held;
    return std::shared_ptr<int>(new int(0), [&held](const int* value) {
      --held;
      delete value;
    });
  };
  std::vector<int> seen;
  weight.defer_to(&queue);
  for (int i = 0; i < 3; ++i)
    weight.write([&seen, &held, hold = holder()](const at::Tensor&, bool) { seen.push_back(held); });
  weight.defer_to(nullptr);
  queue.run();
  EXPECT_EQ(seen, (std::vector<int>{3, 2, 1}));
}

}  // namespace
}  // namespace stepforge::testing
