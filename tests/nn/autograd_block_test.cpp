// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/autograd_block.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

namespace stepforge::testing {
namespace {

/// Of x and an input that it does not use: twice x, integers, and x squared.
class ThreeOutputs : public AutogradBlock {
 protected:
  Bundle compute(const Bundle& inputs, const Context& /*context*/) override {
    return {inputs[0] * 2, at::ones({3, 1}, at::kInt), inputs[0] * inputs[0]};
  }
};

Bundle two_inputs() {
  return {at::full({3, 1}, 5.0), at::ones({3, 2})};
}

TEST(AutogradBlock, GradientsOfInputsAreThoseOfTheOutputsThatHaveSome) {
  ThreeOutputs block;
  const ForwardPass pass = block.forward(two_inputs(), {}, /*trains=*/true);
  ASSERT_EQ(pass.outputs.size(), 3U);
  for (const at::Tensor& output : pass.outputs) EXPECT_FALSE(output.requires_grad());
  const Bundle gradients = pass.backward({at::Tensor(), at::Tensor(), at::ones({3, 1})});
  EXPECT_TRUE(at::equal(gradients.at(0), at::full({3, 1}, 10.0)));
}

TEST(AutogradBlock, AnInputThatItDoesNotUseHasAGradientOfZero) {
  ThreeOutputs block;
  const ForwardPass pass = block.forward(two_inputs(), {}, /*trains=*/true);
  const Bundle gradients = pass.backward({at::ones({3, 1}), at::Tensor(), at::ones({3, 1})});
  EXPECT_TRUE(at::equal(gradients.at(0), at::full({3, 1}, 12.0)));
  EXPECT_TRUE(at::equal(gradients.at(1), at::zeros({3, 2})));
}

TEST(AutogradBlock, HasNoBackwardUnlessItTrains) {
  ThreeOutputs block;
  EXPECT_EQ(block.forward(two_inputs(), {}, /*trains=*/false).backward, nullptr);
}

}  // namespace
}  // namespace stepforge::testing
