// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/expert_bias.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "stepforge/base/error.h"
#include "tests/kernels/compare.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kBiasWidth = 301;
/// The second expert has no rows.
const std::vector<int64_t> kBiasOffsets = {0, 5, 5, 12, 20};

/// Rows in an order other than that of their slots.
at::Tensor bias_slots() {
  std::vector<int32_t> slots;
  for (int32_t row = 0; row < 20; ++row) slots.push_back(row * 7 % 20);
  return int_tensor(slots);
}

struct BiasResults {
  at::Tensor rows;
  at::Tensor grad_bias;
  at::Tensor grad_weights;
};

BiasResults run_bias(const at::Tensor& rows, const at::Tensor& bias, const at::Tensor& weights) {
  const RowFactors factors{weights, bias_slots()};
  BiasResults r{rows.clone(), at::empty(bias.sizes(), bias.options()), at::zeros({10, 2}, bias.options())};
  add_expert_bias(r.rows, kBiasOffsets, bias, factors);
  expert_bias_gradient(rows, kBiasOffsets, factors, r.grad_bias);
  add_factor_gradients(rows, kBiasOffsets, bias, factors.slots, r.grad_weights);
  return r;
}

TEST(ExpertBias, AgreesWithTheFp64ReferenceWithAndWithoutFactors) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const bool weighted : {true, false}) {
      const at::Tensor rows = random_tensor({20, kBiasWidth}, 1).to(type);
      const at::Tensor bias = random_tensor({4, kBiasWidth}, 2);
      const at::Tensor weights = weighted ? random_tensor({10, 2}, 3) : at::Tensor();
      const BiasResults actual = run_bias(rows, bias, weights);
      const BiasResults expected = run_bias(rows.to(at::kDouble), bias.to(at::kDouble),
                                            weighted ? weights.to(at::kDouble) : at::Tensor());
      expect_close(actual.rows, expected.rows, type == at::kFloat ? 4 * kEps32 : kEps16, "rows");
      expect_close(actual.grad_bias, expected.grad_bias, 16 * kEps32, "grad_bias");
      expect_close(actual.grad_weights, expected.grad_weights, 64 * kEps32, "grad_weights");
    }
  }
}

TEST(ExpertBias, ReferenceGradientsAreTheDerivatives) {
  const at::Tensor grad = random_tensor({20, kBiasWidth}, 1).to(at::kDouble);
  const at::Tensor bias = random_tensor({4, kBiasWidth}, 2).to(at::kDouble);
  const at::Tensor weights = random_tensor({10, 2}, 3).to(at::kDouble);
  const BiasResults r = run_bias(grad, bias, weights);
  const auto loss = [&](const at::Tensor& b, const at::Tensor& w) {
    const at::Tensor rows = at::zeros(grad.sizes(), grad.options());
    add_expert_bias(rows, kBiasOffsets, b, {w, bias_slots()});
    return (rows * grad).sum().item<double>();
  };
  expect_derivative([&](const at::Tensor& b) { return loss(b, weights); }, bias, r.grad_bias, "bias");
  expect_derivative([&](const at::Tensor& w) { return loss(bias, w); }, weights, r.grad_weights, "weights");
}

/// As of experts that are divided, each rank of which adds a part of the biases.
TEST(ExpertBias, OfColumnsOfWiderRowsIsThatOfTheseColumns) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const at::ScalarType wide = type == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor rows = random_tensor({20, 3 * kBiasWidth}, 1).to(type);
    const at::Tensor columns = rows.narrow(1, kBiasWidth + 2, kBiasWidth);
    const at::Tensor bias = random_tensor({4, kBiasWidth}, 2).to(wide);
    const at::Tensor weights = random_tensor({10, 2}, 3).to(wide);
    const BiasResults alone = run_bias(columns.contiguous(), bias, weights);
    const RowFactors factors{weights, bias_slots()};
    const BiasResults within{at::Tensor(), at::empty(bias.sizes(), bias.options()),
                             at::zeros({10, 2}, bias.options())};
    expert_bias_gradient(columns, kBiasOffsets, factors, within.grad_bias);
    add_factor_gradients(columns, kBiasOffsets, bias, factors.slots, within.grad_weights);
    EXPECT_TRUE(within.grad_bias.equal(alone.grad_bias));
    EXPECT_TRUE(within.grad_weights.equal(alone.grad_weights));
    const at::Tensor expected = rows.clone();
    expected.narrow(1, kBiasWidth + 2, kBiasWidth).copy_(alone.rows);
    add_expert_bias(columns, kBiasOffsets, bias, factors);
    EXPECT_TRUE(rows.equal(expected));
  }
}

TEST(ExpertBias, DoesNotDependOnTheNumberOfThreads) {
  const at::Tensor rows = random_tensor({20, kBiasWidth}, 1);
  const at::Tensor bias = random_tensor({4, kBiasWidth}, 2);
  const at::Tensor weights = random_tensor({10, 2}, 3);
  expect_same_for_all_threads([&]() -> std::vector<at::Tensor> {
    const BiasResults r = run_bias(rows, bias, weights);
    return {r.rows, r.grad_bias, r.grad_weights};
  });
}

TEST(ExpertBias, OffsetsThatDoNotEndWithTheRowsAreRefused) {
  const std::vector<int64_t> offsets = {0, 5};
  EXPECT_THROW(add_expert_bias(at::zeros({6, 3}), offsets, at::zeros({1, 3}), {}), Error);
}

}  // namespace
}  // namespace stepforge::testing
