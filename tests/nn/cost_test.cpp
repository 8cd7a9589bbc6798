// SPDX-License-Identifier: Apache-2.0
// The specification's costs against the bytes that autograd saves and the allocator counts.
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "stepforge/base/format.h"
#include "stepforge/data/context_part.h"
#include "stepforge/data/tokens_ahead.h"
#include "stepforge/kernels/scalars.h"
#include "stepforge/modelspec/call_budget.h"
#include "stepforge/modelspec/call_cost.h"
#include "stepforge/nn/list_block.h"
#include "stepforge/storage/queued_backward.h"
#include "tests/nn/equal_ranks.h"
#include "tests/nn/tiny_model.h"
#include "tests/support/in_graph.h"

namespace stepforge::testing {
namespace {

struct CostCase {
  std::string name;
  std::string family;
  DType compute = DType::f32;
  double dropout = 0.0;
  std::vector<std::string> recomputed;
  ContextParallel context = {};
  TensorParallel tensor = {};
  std::vector<TensorPlanRule> plan = {};
  AdapterConfig adapter = {};
};

struct Measured {
  int64_t saved = 0;
  int64_t output = 0;
  int64_t forward_peak = 0;
  int64_t backward_peak = 0;
  int64_t queued = 0;       ///< between the backward of inputs and that of weights
  int64_t weight_peak = 0;  ///< of the latter; backward_peak is that of the former
};

class BlockCostTest : public ::testing::TestWithParam<CostCase> {
 protected:
  static constexpr int64_t kRows = 8;
  static constexpr int64_t kSeqLen = 128;

  BlockCostTest() { install_cpu_allocator(); }

  ModelConfig config() const {
    ModelConfig config = tiny_config(GetParam().family);
    config.dropout = GetParam().dropout;
    config.max_position = 4 * kSeqLen;
    config.n_kv_heads = std::max<int64_t>(config.n_kv_heads, GetParam().tensor.degree);
    return config;
  }

  /// `queue`: whether gradients of weights are queued.
  Measured measure(bool queue = false) const {
    TinyModel tiny(config(), GetParam().compute, 7, 0, of_equal_ranks(GetParam().context),
                   of_equal_parts(GetParam().tensor), TensorPlan(GetParam().plan), GetParam().adapter);
    const int64_t degree = GetParam().context.degree;
    const BatchTensors batch(take_part(made_up_batch(kRows, kSeqLen * degree, tiny.config.vocab_size),
                                       {0, degree, true, GetParam().context.heads()}));
    Context context;
    context.batch = &batch;
    context.dropout = tiny.config.dropout;
    context.adapter_dropout = GetParam().adapter.dropout;
    context.recomputed_regions = GetParam().recomputed;
    run(tiny, context, queue);  // libtorch allocates more in its first call
    return run(tiny, context, queue);
  }

  static Measured run(TinyModel& tiny, const Context& context, bool queue) {
    Measured measured;
    const at::ScalarType dtype = tiny.parameter("head.norm").value().scalar_type();
    const int64_t slices = GetParam().tensor.sequence ? GetParam().tensor.degree : 1;
    at::Tensor hidden = random_tensor({kRows * kSeqLen / slices, tiny.config.dim}, 3, dtype);
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
    if (!queue) {
      torch::autograd::backward(outputs, {gradient});
      measured.backward_peak = cpu_memory().peak_bytes - between;
      return measured;
    }
    GradientQueue pending;
    queued_backward(tiny.store, tiny.spec.blocks.at(1).units, pending,
                    [&] { torch::autograd::backward(outputs, {gradient}); });
    measured.backward_peak = cpu_memory().peak_bytes - between;
    const at::Tensor hidden_gradient = hidden.grad();
    const int64_t input_gradient = static_cast<int64_t>(hidden_gradient.nbytes());
    const int64_t callers = static_cast<int64_t>(gradient.nbytes() + hidden.nbytes());  // counted before
    outputs.clear();
    gradient.reset();
    hidden.reset();
    const int64_t after = cpu_memory().live_bytes;
    measured.queued = after - before - input_gradient + callers;
    reset_cpu_peak();
    pending.run();
    measured.weight_peak = cpu_memory().peak_bytes - after;
    EXPECT_EQ(cpu_memory().live_bytes - before, input_gradient - callers);
    return measured;
  }

  BlockCost predicted() const {
    const ContextParallel& parallel = GetParam().context;
    const CostContext context{kRows * kSeqLen,       kSeqLen * parallel.degree, GetParam().compute,
                              at::get_num_threads(), parallel.degree,           GetParam().tensor.degree};
    const ModelSpec spec =
        with_adapters(model_spec(config(), 0, GetParam().tensor, parallel, TensorPlan(GetParam().plan)),
                      GetParam().adapter);
    return block_cost(spec.blocks.at(1), context, GetParam().recomputed);
  }
};

TEST_P(BlockCostTest, SavedBytesEqualWhatAutogradKeeps) {
  const Measured measured = measure();
  EXPECT_EQ(predicted().saved_bytes, measured.saved);
  EXPECT_EQ(predicted().output_bytes, measured.output);
}

/// libtorch's bf16 products on the CPU allocate scratch on some processors; its size does not depend on the batch.
constexpr double kScratch = 160 << 10;

/// An upper bound: what attention exchanges is counted as if it all lived at once.
void expect_bound(int64_t predicted, int64_t measured, double slack = 1.4) {
  constexpr int64_t kHeadNumbers = 256;  // which heads go where
  EXPECT_GE(predicted + kHeadNumbers, measured);
  EXPECT_LE(static_cast<double>(predicted), slack * static_cast<double>(measured));
}

TEST_P(BlockCostTest, PeaksEqualThoseOfTheAllocator) {
  const Measured measured = measure();
  if (GetParam().context.degree > 1) {
    const double slack = needs_whole_attention(GetParam().family) ? 1.45 : 1.4;
    expect_bound(predicted().forward_peak_bytes, measured.forward_peak, slack);
    expect_bound(predicted().backward_peak_bytes, measured.backward_peak);
    return;
  }
  const double scratch = GetParam().compute == DType::bf16 ? kScratch : 0;
  EXPECT_NEAR(predicted().backward_peak_bytes, measured.backward_peak, scratch);
  const bool normed = find_family(GetParam().family).traits.qk_norm != QkNormScope::none;
  if (normed && !GetParam().recomputed.empty()) {
    // Without a graph the projection is freed as soon as it is normed; the cost counts it to the region's
    // end.
    EXPECT_GE(predicted().forward_peak_bytes + scratch, measured.forward_peak);
    // So is, in a replicated layer, what was gathered from slices.
    const double slack = needs_whole_attention(GetParam().family) ? 1.8 : 1.2;
    EXPECT_LE(predicted().forward_peak_bytes, slack * static_cast<double>(measured.forward_peak) + scratch);
  } else {
    EXPECT_NEAR(predicted().forward_peak_bytes, measured.forward_peak, scratch);
  }
}

TEST_P(BlockCostTest, QueuedBytesEqualWhatLivesBetweenBackwardOfInputsAndOfWeights) {
  const Measured measured = measure(/*queue=*/true);
  EXPECT_EQ(predicted().queued_bytes, measured.queued);
  EXPECT_LE(predicted().queued_saved_bytes, std::min(measured.queued, measured.saved));
  if (GetParam().context.degree > 1) {
    expect_bound(predicted().backward_input_peak_bytes, measured.backward_peak, /*slack=*/1.45);
  } else if (GetParam().compute == DType::bf16) {
    EXPECT_NEAR(predicted().backward_input_peak_bytes, measured.backward_peak, kScratch);
    // The products may copy their operands.
    const double copies = 2.0 * kRows * kSeqLen * static_cast<double>(config().dim + config().ffn_dim);
    EXPECT_GE(measured.weight_peak, predicted().backward_weight_peak_bytes);
    EXPECT_LE(measured.weight_peak, predicted().backward_weight_peak_bytes + copies + kScratch);
    return;
  } else {
    EXPECT_EQ(predicted().backward_input_peak_bytes, measured.backward_peak);
  }
  EXPECT_EQ(predicted().backward_weight_peak_bytes, measured.weight_peak);
}

/// Makes GoogleTest print the case's name instead of its bytes.
void PrintTo(const CostCase& cost_case, std::ostream* stream) {
  *stream << cost_case.name;
}

/// What a budget makes again in the first layer.
std::vector<std::string> within(double budget, const std::string& family, const TensorParallel& tensor = {},
                                const std::vector<TensorPlanRule>& plan = {}) {
  const ModelSpec model = model_spec(tiny_config(family), 0, tensor, {}, TensorPlan(plan));
  const CostContext context{.tokens = 1024, .document_length = 128, .slices = tensor.degree};
  return recomputation_within(model.blocks.at(1), context, budget).recomputed;
}

void add_budgets(std::vector<CostCase>& cases, const std::string& family,
                 const std::vector<TensorPlanRule>& plan) {
  for (const int percent : {0, 30, 60}) {
    const std::string name = format("{}_budget_{}", family, percent);
    const std::vector<std::string> chosen = within(percent / 100.0, family);
    cases.push_back({name + "_fp32", family, DType::f32, 0.0, chosen});
    cases.push_back({name + "_bf16_dropout", family, DType::bf16, 0.1, chosen});
    const TensorParallel slices{1, 2, true};
    cases.push_back({name + "_tensor_sequence",
                     family,
                     DType::f32,
                     0.0,
                     within(percent / 100.0, family, slices, plan),
                     {},
                     slices,
                     plan});
  }
}

/// Adapters of two ranks, in all matrices or in some tensors of packed ones.
void add_adapter_cases(std::vector<CostCase>& cases, const std::string& family,
                       const std::vector<TensorPlanRule>& plan) {
  AdapterConfig all;
  all.type = AdapterType::lora;
  all.patterns = {{.pattern = "o_proj", .rank = 5}};
  AdapterConfig some = all;
  some.targets = {".*(q|kv_b|up)_proj"};
  some.patterns = {};
  some.dropout = 0.25;
  for (const std::vector<std::string>& recomputed : {std::vector<std::string>{}, {"attention", "mlp"}}) {
    const std::string again = recomputed.empty() ? "" : "_again";
    for (const DType compute : {DType::f32, DType::bf16}) {
      const std::string name = format("{}_{}", family, dtype_name(compute));
      cases.push_back({name + "_adapters" + again, family, compute, 0.0, recomputed, {}, {}, {}, all});
      cases.push_back({name + "_some_adapters" + again, family, compute, 0.0, recomputed, {}, {}, {}, some});
    }
    AdapterConfig magnitudes = all;
    magnitudes.type = AdapterType::dora;
    cases.push_back({format("{}_magnitudes{}", family, again),
                     family,
                     DType::f32,
                     0.0,
                     recomputed,
                     {},
                     {},
                     {},
                     magnitudes});
    cases.push_back({format("{}_magnitudes_sequence{}", family, again),
                     family,
                     DType::f32,
                     0.0,
                     recomputed,
                     {},
                     {1, 2, true},
                     plan,
                     magnitudes});
    for (const bool sequence : {false, true})
      cases.push_back({format("{}_adapters_tensor{}{}", family, sequence ? "_sequence" : "", again),
                       family,
                       DType::f32,
                       0.0,
                       recomputed,
                       {},
                       {1, 2, sequence},
                       plan,
                       all});
  }
}

std::vector<CostCase> cost_cases() {
  std::vector<CostCase> cases;
  for (const std::string& family : family_names()) {
    if (has_experts(family)) continue;  // expert_cost_test.cpp, biased_experts_cost_test.cpp
    const bool all_heads = needs_whole_attention(family);
    const std::vector<TensorPlanRule> attention_whole = {{"attention", TensorStyle::replicate}};
    const auto plan = all_heads ? attention_whole : std::vector<TensorPlanRule>();
    for (const DType compute : {DType::f32, DType::bf16}) {
      for (const double dropout : {0.0, 0.1}) {
        for (const std::vector<std::string>& recomputed :
             std::vector<std::vector<std::string>>{{}, {"attention"}, {"mlp"}, {"attention", "mlp"}}) {
          std::string name =
              family + (compute == DType::f32 ? "_fp32" : "_bf16") + (dropout > 0 ? "_dropout" : "");
          for (const auto& region : recomputed) name += "_recompute_" + region;
          cases.push_back({name, family, compute, dropout, recomputed});
        }
      }
    }
    add_budgets(cases, family, plan);
    add_adapter_cases(cases, family, plan);
    for (const bool sequence : {false, true}) {
      for (const double dropout : {0.0, 0.1}) {
        for (const std::vector<std::string>& recomputed :
             {std::vector<std::string>{}, {"attention", "mlp"}}) {
          cases.push_back({format("{}_tensor{}{}{}", family, sequence ? "_sequence" : "",
                                  dropout > 0 ? "_dropout" : "", recomputed.empty() ? "" : "_again"),
                           family,
                           DType::f32,
                           dropout,
                           recomputed,
                           {},
                           {1, 2, sequence},
                           plan});
        }
      }
    }
    for (const auto& [name, degree, dropout, recomputed] :
         std::vector<std::tuple<std::string, int, double, std::vector<std::string>>>{
             {"async_2", 2, 0.0, {}},
             {"async_2_dropout", 2, 0.1, {}},
             {"async_2_again", 2, 0.0, {"attention", "mlp"}},
             {"async_4", 4, 0.0, {}}}) {
      cases.push_back({family + "_" + name,
                       family,
                       DType::f32,
                       dropout,
                       recomputed,
                       {},
                       {.rank = 1, .degree = degree, .sequence = true, .async = true},
                       plan});
    }
    for (const char* layer : {"attention", "mlp"}) {
      if (all_heads && layer == std::string("mlp")) continue;
      for (const bool sequence : {false, true}) {
        cases.push_back({format("{}_replicated_{}{}", family, layer, sequence ? "_sequence" : ""),
                         family,
                         DType::f32,
                         0.0,
                         {},
                         {},
                         {1, 2, sequence},
                         {{layer, TensorStyle::replicate}}});
      }
    }
    for (const ContextParallel& context :
         {ContextParallel{2, ContextMethod::allgather}, ContextParallel{2, ContextMethod::ring},
          ContextParallel{2, ContextMethod::ulysses}, ContextParallel{4, ContextMethod::ulysses},
          ContextParallel{4, ContextMethod::hybrid, 2}}) {
      if (context.has_ring() && may_slide(family)) continue;  // refused
      const char* method = context.method == ContextMethod::allgather ? "allgather"
                           : context.method == ContextMethod::ring    ? "ring"
                           : context.method == ContextMethod::hybrid  ? "hybrid"
                                                                      : "ulysses";
      for (const std::vector<std::string>& recomputed : {std::vector<std::string>{}, {"attention"}}) {
        cases.push_back(
            {format("{}_{}_{}{}", family, method, context.degree, recomputed.empty() ? "" : "_again"), family,
             DType::f32, 0.0, recomputed, context});
      }
    }
  }
  return cases;
}

TEST(EmbeddingCost, QueuedBytesAreTheTokensAndTheGradientOfTheirRows) {
  install_cpu_allocator();
  TinyModel tiny(tiny_config());
  constexpr int64_t kTokens = 2 * 24;
  for (const int64_t ahead : {0, 2}) {
    Batch rows = made_up_batch(2, 24, tiny.config.vocab_size);
    add_tokens_ahead(rows, ahead);
    const BatchTensors batch(std::move(rows));
    Context context;
    context.batch = &batch;
    GradientQueue pending;
    const std::vector<int> units = {0};
    const int64_t before = cpu_memory().live_bytes;
    const LayerSpec layer =
        embedding_layer("embedding", "", tiny.config.vocab_size, tiny.config.dim, {}, ahead);
    ListBlock block(layer.list, layer.list, tiny.store.lookup(), std::make_shared<const LayerResources>());
    queued_backward(tiny.store, units, pending, [&] {
      const Bundle made = forward_in_graph(block, {}, context);
      Bundle gradients;
      for (size_t i = 0; i < made.size(); ++i)
        gradients.push_back(random_tensor({kTokens, tiny.config.dim}, static_cast<int>(i)));
      torch::autograd::backward(made, gradients);
    });
    const BlockCost cost = list_cost(layer.list, {.tokens = kTokens});
    EXPECT_EQ(cpu_memory().live_bytes - before, cost.queued_bytes);
    EXPECT_EQ(cost.queued_bytes, (1 + ahead) * kTokens * (4 + tiny.config.dim * 4));
  }
}

AdapterConfig adapter_of_module(const char* module, double dropout = 0.0) {
  AdapterConfig adapter;
  adapter.type = AdapterType::lora;
  adapter.rank = 5;
  adapter.targets = {module};
  adapter.dropout = dropout;
  return adapter;
}

TEST(EmbeddingCost, OfAnAdapterIsWhatTheAllocatorCounts) {
  install_cpu_allocator();
  TinyModel tiny(tiny_config(), DType::f32, 7, 0, {}, {}, {}, adapter_of_module("embed_tokens"));
  const BatchTensors batch(made_up_batch(8, 128, tiny.config.vocab_size));
  Context context;
  context.batch = &batch;
  const BlockCost cost = block_cost(tiny.spec.blocks.front(), {.tokens = 8 * 128, .document_length = 128});
  for (int time = 0; time < 2; ++time) {  // libtorch allocates more in its first call
    at::Tensor gradient = random_tensor({8 * 128, tiny.config.dim}, 4);
    reset_cpu_peak();
    const int64_t before = cpu_memory().live_bytes;
    const Bundle made = forward_in_graph(*tiny.model.blocks.front(), {}, context);
    const int64_t forward_peak = cpu_memory().peak_bytes - before;
    const int64_t between = cpu_memory().live_bytes;
    reset_cpu_peak();
    torch::autograd::backward(made, {gradient});
    const int64_t backward_peak = cpu_memory().peak_bytes - between;
    if (time == 0) continue;
    EXPECT_EQ(cost.output_bytes, static_cast<int64_t>(made.front().nbytes()));
    EXPECT_EQ(cost.saved_bytes, between - before - cost.output_bytes);
    EXPECT_EQ(cost.forward_peak_bytes, forward_peak);
    EXPECT_EQ(cost.backward_peak_bytes, backward_peak);
  }
}

struct HeadPeak {
  int64_t measured = 0;
  int64_t predicted = 0;
};

/// Of the loss with its gradients, beside an adapter of `module`.
HeadPeak head_peak(const char* module) {
  TinyModel tiny(tiny_config(), DType::f32, 7, 64, {}, {}, {}, adapter_of_module(module));
  const BatchTensors batch(made_up_batch(8, 128, tiny.config.vocab_size));
  Context context;
  context.batch = &batch;
  const at::Tensor hidden = random_tensor({8 * 128, tiny.config.dim}, 3);
  const at::Tensor scale = scalar(0.125);
  const BlockCost cost = block_cost(tiny.spec.blocks.back(), {.tokens = 8 * 128, .document_length = 128});
  HeadPeak peak{.predicted = cost.forward_peak_bytes + cost.backward_peak_bytes};
  for (int time = 0; time < 2; ++time) {  // libtorch allocates more in its first call
    reset_cpu_peak();
    const int64_t before = cpu_memory().live_bytes;
    tiny.model.heads.front()->loss_with_gradients({hidden}, context, scale);
    peak.measured = cpu_memory().peak_bytes - before;
  }
  return peak;
}

TEST(HeadCost, OfAnAdapterIsWhatTheAllocatorCountsMore) {
  install_cpu_allocator();
  const HeadPeak plain = head_peak("q_proj");
  const HeadPeak adapted = head_peak("lm_head");
  EXPECT_GT(adapted.measured, plain.measured);
  EXPECT_EQ(adapted.predicted - plain.predicted, adapted.measured - plain.measured);
}

INSTANTIATE_TEST_SUITE_P(Layers, BlockCostTest, ::testing::ValuesIn(cost_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace stepforge::testing
