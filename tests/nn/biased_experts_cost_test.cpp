// SPDX-License-Identifier: Apache-2.0
// The costs of a layer of gpt-oss (biases, sinks, catalog/biased_experts.h) against the bytes that autograd saves and the
// allocator counts. Those of experts are upper bounds.
#include <ostream>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "stepforge/storage/queued_backward.h"
#include "tests/nn/tiny_model.h"
#include "tests/support/in_graph.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kBiasedRows = 8;
constexpr int64_t kBiasedLength = 128;

struct MeasuredBlock {
  int64_t saved = 0;
  int64_t output = 0;
  int64_t forward_peak = 0;
  int64_t backward_peak = 0;
  int64_t queued = 0;
};

struct BiasedCase {
  std::string name;
  DType compute = DType::f32;
  std::vector<std::string> recomputed = {};
};

/// Makes GoogleTest print the case's name instead of its bytes.
void PrintTo(const BiasedCase& biased_case, std::ostream* stream) {
  *stream << biased_case.name;
}

ModelConfig biased_config() {
  ModelConfig config = tiny_config("gpt_oss");
  config.max_position = 4 * kBiasedLength;
  return config;
}

class BiasedExpertsCost : public ::testing::TestWithParam<BiasedCase> {
 protected:
  BiasedExpertsCost() { install_cpu_allocator(); }

  static MeasuredBlock measure(bool queue) {
    TinyModel tiny(biased_config(), GetParam().compute);
    tiny.start_gradients();
    const BatchTensors batch(made_up_batch(kBiasedRows, kBiasedLength, tiny.config.vocab_size));
    Context context;
    context.batch = &batch;
    context.recomputed_regions = GetParam().recomputed;
    run(tiny, context, queue);  // libtorch allocates more in its first call
    return run(tiny, context, queue);
  }

  static MeasuredBlock run(TinyModel& tiny, const Context& context, bool queue) {
    MeasuredBlock measured;
    const at::ScalarType dtype = tiny.parameter("head.norm").value().scalar_type();
    at::Tensor hidden = random_tensor({kBiasedRows * kBiasedLength, tiny.config.dim}, 3, dtype);
    at::Tensor gradient = random_tensor(hidden.sizes(), 4, dtype);
    hidden.set_requires_grad(true);
    reset_cpu_peak();
    const int64_t before = cpu_memory().live_bytes;
    Bundle outputs = forward_in_graph(*tiny.model.blocks.at(1), {hidden}, context);
    measured.output = static_cast<int64_t>(outputs.at(0).nbytes());
    measured.forward_peak = cpu_memory().peak_bytes - before;
    measured.saved = cpu_memory().live_bytes - before - measured.output;
    reset_cpu_peak();
    const int64_t between = cpu_memory().live_bytes;
    GradientQueue pending;
    const std::vector<int> units = {1};
    if (queue) {
      queued_backward(tiny.store, units, pending, [&] { torch::autograd::backward(outputs, {gradient}); });
    } else {
      torch::autograd::backward(outputs, {gradient});
    }
    measured.backward_peak = cpu_memory().peak_bytes - between;
    const auto input_gradient = static_cast<int64_t>(hidden.grad().nbytes());
    const auto callers = static_cast<int64_t>(gradient.nbytes() + hidden.nbytes());
    const at::Tensor kept = hidden.grad();
    outputs.clear();
    gradient.reset();
    hidden.reset();
    measured.queued = cpu_memory().live_bytes - before - input_gradient + callers;
    pending.run();
    EXPECT_EQ(cpu_memory().live_bytes - before, input_gradient - callers);
    return measured;
  }

  static BlockCost predicted() {
    const CostContext context{kBiasedRows * kBiasedLength, kBiasedLength, GetParam().compute,
                              at::get_num_threads()};
    return block_cost(model_spec(biased_config()).blocks.at(1), context, GetParam().recomputed);
  }
};

TEST_P(BiasedExpertsCost, SavedBytesEqualWhatAutogradKeeps) {
  const MeasuredBlock measured = measure(/*queue=*/false);
  EXPECT_EQ(predicted().saved_bytes, measured.saved);
  EXPECT_EQ(predicted().output_bytes, measured.output);
}

void expect_bound(int64_t bound, int64_t measured, double slack, const char* name) {
  EXPECT_GE(bound, measured) << name;
  EXPECT_LE(static_cast<double>(bound), slack * static_cast<double>(measured)) << name;
}

TEST_P(BiasedExpertsCost, PeaksAreBoundsThatAreNearlyReached) {
  if (GetParam().compute == DType::bf16) return;  // libtorch's products allocate scratch
  const MeasuredBlock measured = measure(/*queue=*/false);
  expect_bound(predicted().forward_peak_bytes, measured.forward_peak, 1.15, "forward");
  expect_bound(predicted().backward_peak_bytes, measured.backward_peak, 1.15, "backward");
  const MeasuredBlock queued = measure(/*queue=*/true);
  expect_bound(predicted().backward_input_peak_bytes, queued.backward_peak, 1.55, "backward of inputs");
  expect_bound(predicted().queued_bytes, queued.queued, 1.3, "queued");
}

INSTANTIATE_TEST_SUITE_P(Layers, BiasedExpertsCost,
                         ::testing::Values(BiasedCase{"fp32"}, BiasedCase{"bf16", DType::bf16},
                                           BiasedCase{"fp32_attention_again", DType::f32, {"attention"}},
                                           BiasedCase{"fp32_mlp_again", DType::f32, {"mlp"}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace stepforge::testing
