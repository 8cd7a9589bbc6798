// SPDX-License-Identifier: Apache-2.0
// The costs of catalog/latent_layer.h against the bytes that autograd saves and the allocator counts.
#include <ostream>
#include <string>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "stepforge/catalog/latent_layer.h"
#include "stepforge/modelspec/call_cost.h"
#include "stepforge/nn/list_block.h"
#include "stepforge/storage/queued_backward.h"
#include "tests/nn/tiny_model.h"
#include "tests/support/in_graph.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kLatentRows = 4;
constexpr int64_t kLatentLength = 128;
constexpr int64_t kLatentTokens = kLatentRows * kLatentLength;

struct LatentCase {
  std::string name;
  LatentDims dims;
  bool dropout = false;
};

void PrintTo(const LatentCase& layer_case, std::ostream* stream) {
  *stream << layer_case.name;
}

LayerTraits latent_traits(const LatentDims& dims) {
  return {.projection = dims.q_rank > 0 ? AttentionProjection::latent : AttentionProjection::latent_keys,
          .query_scale = 0.2};
}

/// One layer of attention with storage.
struct LatentModel {
  LatentModel(const LatentCase& layer_case, DType compute)
      : spec(latent_attention_layer("a", "", layer_case.dims, latent_traits(layer_case.dims), 0.02,
                                    layer_case.dropout)),
        units({{.name = "a", .parameters = spec.parameters}}),
        store(units, rank_layout(units, {.gather = compute})),
        block(spec.list, spec.list, store.lookup(), resources(layer_case)) {
    store.initialize(7);
    UnitStore& unit = store.unit(0);
    if (!unit.resident()) unit.gather(at::empty({unit.gathered_size()}, scalar_type(compute)));
    unit.start_gradient();
  }

  static std::shared_ptr<const LayerResources> resources(const LatentCase& layer_case) {
    LayerResources made;
    made.rope =
        std::make_shared<const RopeTable>(make_rope_table(kLatentLength, layer_case.dims.rotated, 1e4, {}));
    return std::make_shared<const LayerResources>(made);
  }

  LayerSpec spec;
  std::vector<UnitSpec> units;
  ModelStore store;
  ListBlock block;
};

struct MeasuredLatents {
  int64_t saved = 0;
  int64_t output = 0;
  int64_t forward_peak = 0;
  int64_t backward_peak = 0;
  int64_t queued = 0;
};

MeasuredLatents measure_latents(const LatentCase& layer_case, DType compute, bool queue) {
  LatentModel model(layer_case, compute);
  const BatchTensors batch(made_up_batch(kLatentRows, kLatentLength, 96));
  Context context;
  context.batch = &batch;
  context.dropout = layer_case.dropout ? 0.1 : 0.0;
  MeasuredLatents measured;
  for (int round = 0; round < 2; ++round) {  // libtorch allocates more in its first call
    at::Tensor x = random_tensor({kLatentTokens, layer_case.dims.width}, 3).to(scalar_type(compute));
    x.set_requires_grad(true);
    at::Tensor gradient = random_tensor(x.sizes(), 4).to(scalar_type(compute));
    reset_cpu_peak();
    const int64_t before = cpu_memory().live_bytes;
    at::Tensor out = forward_in_graph(model.block, {x}, context).front();
    measured.output = static_cast<int64_t>(out.nbytes());
    measured.forward_peak = cpu_memory().peak_bytes - before;
    measured.saved = cpu_memory().live_bytes - before - measured.output;
    reset_cpu_peak();
    const int64_t between = cpu_memory().live_bytes;
    GradientQueue pending;
    const std::vector<int> units = {0};
    const auto run = [&] { torch::autograd::backward({out}, {gradient}); };
    queue ? queued_backward(model.store, units, pending, run) : run();
    measured.backward_peak = cpu_memory().peak_bytes - between;
    const auto callers = static_cast<int64_t>(gradient.nbytes());
    const auto input_gradient = static_cast<int64_t>(x.grad().nbytes());
    out.reset();
    gradient.reset();
    measured.queued = cpu_memory().live_bytes - before - input_gradient + callers;
    pending.run();
    EXPECT_EQ(cpu_memory().live_bytes - before, input_gradient - callers);
  }
  return measured;
}

BlockCost predicted_latents(const LatentCase& layer_case, DType compute) {
  const LayerSpec spec = latent_attention_layer("a", "", layer_case.dims, latent_traits(layer_case.dims),
                                                0.02, layer_case.dropout);
  return list_cost(spec.list, {.tokens = kLatentTokens,
                               .document_length = kLatentLength,
                               .compute = compute,
                               .threads = at::get_num_threads()});
}

class LatentCost : public ::testing::TestWithParam<LatentCase> {
 protected:
  LatentCost() { install_cpu_allocator(); }
};

TEST_P(LatentCost, SavedBytesEqualWhatAutogradKeeps) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    const MeasuredLatents measured = measure_latents(GetParam(), compute, /*queue=*/false);
    EXPECT_EQ(predicted_latents(GetParam(), compute).saved_bytes, measured.saved);
    EXPECT_EQ(predicted_latents(GetParam(), compute).output_bytes, measured.output);
  }
}

/// The formula of the header.
TEST_P(LatentCost, SavedBytesPerTokenAreThoseOfTheHeader) {
  const LatentDims& d = GetParam().dims;
  const int64_t heads = d.heads * (2 * d.head_dim() + 2 * d.value);
  const int64_t compute = d.width + 2 * (d.kv_rank + d.q_rank) + heads;
  const int64_t fp32 = (d.q_rank > 0 ? 3 : 2) + d.heads;
  EXPECT_EQ(predicted_latents(GetParam(), DType::bf16).saved_bytes, kLatentTokens * (2 * compute + 4 * fp32));
}

void expect_latent_bound(int64_t bound, int64_t measured, double slack, const char* name) {
  EXPECT_GE(bound, measured) << name;
  EXPECT_LE(static_cast<double>(bound), slack * static_cast<double>(measured)) << name;
}

TEST_P(LatentCost, PeaksAreBoundsThatAreNearlyReached) {
  const BlockCost cost = predicted_latents(GetParam(), DType::f32);
  const MeasuredLatents measured = measure_latents(GetParam(), DType::f32, /*queue=*/false);
  EXPECT_EQ(cost.forward_peak_bytes, measured.forward_peak);
  expect_latent_bound(cost.backward_peak_bytes, measured.backward_peak, 1.05, "backward");
  const MeasuredLatents queued = measure_latents(GetParam(), DType::f32, /*queue=*/true);
  expect_latent_bound(cost.backward_input_peak_bytes, queued.backward_peak, 1.3, "backward of inputs");
  EXPECT_EQ(cost.queued_bytes, queued.queued);
}

INSTANTIATE_TEST_SUITE_P(Layers, LatentCost,
                         ::testing::Values(LatentCase{"lite", {96, 4, 0, 40, 24, 16, 20}},
                                           LatentCase{"lite_dropout", {96, 4, 0, 40, 24, 16, 20}, true},
                                           LatentCase{"with_q_latent", {96, 6, 56, 40, 32, 16, 24}},
                                           LatentCase{"wide_input", {512, 2, 24, 32, 16, 8, 16}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace stepforge::testing
