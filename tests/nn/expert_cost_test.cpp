// SPDX-License-Identifier: Apache-2.0
// The costs of catalog/expert_layers.h against the bytes that autograd saves and the allocator counts.
#include <utility>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "stepforge/modelspec/call_cost.h"
#include "stepforge/storage/queued_backward.h"
#include "tests/nn/expert_model.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kCostRows = 4;
constexpr int64_t kCostLength = 128;
constexpr int64_t kCostTokens = kCostRows * kCostLength;

struct MeasuredExperts {
  int64_t saved = 0;
  int64_t output = 0;
  int64_t forward_peak = 0;
  int64_t backward_peak = 0;
  int64_t queued = 0;
};

MeasuredExperts measure_experts(const ExpertCase& layer_case, DType compute, bool queue) {
  ExpertModel model(layer_case, compute);
  const BatchTensors batch(made_up_batch(kCostRows, kCostLength, 96));
  MeasuredExperts measured;
  for (int round = 0; round < 2; ++round) {  // libtorch allocates more in its first call
    RouterStep step(scalar(1.0), batch);
    Context context;
    context.batch = &batch;
    context.routers = &step;
    at::Tensor x = random_tensor({kCostTokens, layer_case.dims.width}, 3, scalar_type(compute));
    x.set_requires_grad(true);
    at::Tensor gradient = random_tensor(x.sizes(), 4, scalar_type(compute));
    reset_cpu_peak();
    const int64_t before = cpu_memory().live_bytes;
    at::Tensor out = model.forward(x, context);
    // What the router reports belongs to the step.
    const RouterReport& report = step.report_of(0);
    const auto reported = static_cast<int64_t>(report.row_sums.nbytes() + report.losses.nbytes() +
                                               report.tokens_per_expert.nbytes());
    measured.output = static_cast<int64_t>(out.nbytes());
    measured.forward_peak = cpu_memory().peak_bytes - before - reported;
    measured.saved = cpu_memory().live_bytes - before - measured.output - reported;
    reset_cpu_peak();
    const int64_t between = cpu_memory().live_bytes;
    GradientQueue pending;
    const std::vector<int> units = {0};
    if (queue) {
      queued_backward(model.store, units, pending, [&] { torch::autograd::backward({out}, {gradient}); });
    } else {
      torch::autograd::backward({out}, {gradient});
    }
    measured.backward_peak = cpu_memory().peak_bytes - between;
    const auto callers = static_cast<int64_t>(gradient.nbytes());
    const auto input_gradient = static_cast<int64_t>(x.grad().nbytes());
    out.reset();
    gradient.reset();
    measured.queued = cpu_memory().live_bytes - before - reported - input_gradient + callers;
    pending.run();
    EXPECT_EQ(cpu_memory().live_bytes - before - reported, input_gradient - callers);
  }
  return measured;
}

BlockCost predicted_experts(const ExpertCase& layer_case, DType compute) {
  return list_cost(layer_case.calls(),
                   {.tokens = kCostTokens, .document_length = kCostLength, .compute = compute});
}

class ExpertCost : public ::testing::TestWithParam<ExpertCase> {
 protected:
  ExpertCost() { install_cpu_allocator(); }
};

TEST_P(ExpertCost, SavedBytesEqualWhatAutogradKeeps) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    const MeasuredExperts measured = measure_experts(GetParam(), compute, /*queue=*/false);
    EXPECT_EQ(predicted_experts(GetParam(), compute).saved_bytes, measured.saved);
    EXPECT_EQ(predicted_experts(GetParam(), compute).output_bytes, measured.output);
  }
}

/// The formula of the header.
TEST_P(ExpertCost, SavedBytesPerTokenAreThoseOfTheHeader) {
  if (GetParam().adapter.enabled()) return;
  const ExpertDims& d = GetParam().dims;
  const int64_t shared = d.shared_hidden > 0 ? 3 * d.shared_hidden + (d.shared_gate ? d.width : 0) : 0;
  const int64_t compute = d.width + 2 * d.hidden * d.chosen + shared;  // the input is the caller's
  const int64_t fp32 = 1 + d.experts + 4 * d.chosen + (d.shared_gate ? 1 : 0);
  EXPECT_EQ(predicted_experts(GetParam(), DType::bf16).saved_bytes, kCostTokens * (2 * compute + 4 * fp32));
}

void expect_near_bound(int64_t bound, int64_t measured, double slack, const char* name) {
  EXPECT_GE(bound, measured) << name;
  EXPECT_LE(static_cast<double>(bound), slack * static_cast<double>(measured)) << name;
}

TEST_P(ExpertCost, PeaksAreBoundsThatAreNearlyReached) {
  const BlockCost cost = predicted_experts(GetParam(), DType::f32);
  const MeasuredExperts measured = measure_experts(GetParam(), DType::f32, /*queue=*/false);
  expect_near_bound(cost.forward_peak_bytes, measured.forward_peak, 1.15, "forward");
  expect_near_bound(cost.backward_peak_bytes, measured.backward_peak, 1.15, "backward");
  const MeasuredExperts queued = measure_experts(GetParam(), DType::f32, /*queue=*/true);
  expect_near_bound(cost.backward_input_peak_bytes, queued.backward_peak, 1.45, "backward of inputs");
  expect_near_bound(cost.queued_bytes, queued.queued, 1.3, "queued");
}

/// Rows of 3 experts for each token, of which A makes 4 numbers for each of two matrices, and then B adds to both.
TEST(AdaptedExpertCost, FlopsAreThoseOfTheProductsOfARow) {
  const ExpertCase layer_case = adapted_expert_cases().front();
  ExpertCase plain = layer_case;
  plain.adapter = {};
  const auto& [width, hidden] = std::pair(layer_case.dims.width, layer_case.dims.hidden);
  const auto factors = static_cast<double>(3 * 4 * (2 * (width + hidden) + hidden + width));
  const BlockCost cost = predicted_experts(layer_case, DType::f32);
  const double of_base = predicted_experts(plain, DType::f32).forward_flops;
  EXPECT_EQ(cost.forward_flops - of_base, 2 * factors * kCostTokens);
  EXPECT_EQ(cost.backward_weight_flops, 2 * factors * kCostTokens);
}

INSTANTIATE_TEST_SUITE_P(Adapted, ExpertCost, ::testing::ValuesIn(adapted_expert_cases()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Layers, ExpertCost, ::testing::ValuesIn(expert_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace stepforge::testing
