// SPDX-License-Identifier: Apache-2.0
// Gradients of weights written after those of inputs have the bits of a backward in one piece.
#include "stepforge/storage/queued_backward.h"

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/nn/equal_ranks.h"
#include "tests/nn/tiny_model.h"
#include "tests/support/in_graph.h"

namespace stepforge::testing {
namespace {

struct QueueCase {
  std::string name;
  std::string family = "llama";
  DType compute = DType::f32;
  TensorParallel tensor = {};
  std::vector<std::string> recomputed = {};
  double dropout = 0.0;
  ContextParallel context = {};
};

/// Makes GoogleTest print the case's name instead of its bytes.
void PrintTo(const QueueCase& queue_case, std::ostream* stream) {
  *stream << queue_case.name;
}

constexpr int kMicroBatches = 3;

/// The blocks before the head, which is never split, with gradients of three micro-batches.
class QueuedBackward : public ::testing::TestWithParam<QueueCase> {
 protected:
  static constexpr int64_t kRows = 2;
  static constexpr int64_t kSeqLen = 12;

  QueuedBackward()
      : tiny(config(), GetParam().compute, 7, 0, of_equal_ranks(GetParam().context),
             of_equal_parts(GetParam().tensor)) {
    for (uint64_t m = 0; m < kMicroBatches; ++m) {
      const int64_t degree = GetParam().context.degree;
      const Batch whole = made_up_batch(kRows, kSeqLen * degree, tiny.config.vocab_size, 10 * m);
      batches.emplace_back(take_part(whole, {0, degree, true, GetParam().context.heads()}));
    }
  }

  static ModelConfig config() {
    ModelConfig config = tiny_config(GetParam().family);
    config.dropout = GetParam().dropout;
    return config;
  }

  /// Forward of block `index`, whose backward can run once.
  struct Pass {
    at::Tensor input;
    Bundle outputs;
    at::Tensor gradient;
  };

  Pass forward(size_t index, uint64_t micro_batch) {
    Context context;
    context.batch = &batches.at(micro_batch);
    context.dropout = tiny.config.dropout;
    context.recomputed_regions = GetParam().recomputed;
    const at::ScalarType dtype = tiny.parameter("head.norm").value().scalar_type();
    const TensorParallel& tensor = GetParam().tensor;
    Pass pass;
    Bundle inputs;
    const int64_t tokens = kRows * kSeqLen / (tensor.sequence ? tensor.degree : 1);
    if (index > 0) {
      pass.input = random_tensor({tokens, tiny.config.dim}, 20 + micro_batch, dtype);
      inputs = {pass.input.set_requires_grad(true)};
    }
    pass.outputs = forward_in_graph(*tiny.model.blocks.at(index), inputs, context);
    pass.gradient = random_tensor(pass.outputs.at(0).sizes(), 30 + micro_batch, dtype);
    return pass;
  }

  static void backward(const Pass& pass) { torch::autograd::backward(pass.outputs, {pass.gradient}); }

  /// All gradients of block `index`, after start_gradient().
  at::Tensor start(size_t index) {
    UnitStore& unit = tiny.store.unit(index);
    unit.gradient().fill_(77.0);
    unit.start_gradient();
    return unit.gradient();
  }

  struct Results {
    at::Tensor weights;
    std::vector<at::Tensor> inputs;
  };

  /// Backward of all micro-batches in one piece.
  Results at_once(size_t index) {
    Results results;
    const at::Tensor gradient = start(index);
    for (uint64_t m = 0; m < kMicroBatches; ++m) {
      const Pass pass = forward(index, m);
      backward(pass);
      tiny.store.unit(index).finish_gradient();
      if (index > 0) results.inputs.push_back(pass.input.grad());
    }
    results.weights = gradient.clone();
    return results;
  }

  /// Runs the queue of each micro-batch when the inputs of `ahead` later ones have their gradients.
  Results queued(size_t index, size_t ahead) {
    Results results;
    const at::Tensor gradient = start(index);
    std::vector<GradientQueue> queues(kMicroBatches);
    const std::vector<int> units = {static_cast<int>(index)};
    for (size_t m = 0; m < kMicroBatches + ahead; ++m) {
      if (m < kMicroBatches) {
        const Pass pass = forward(index, m);
        const at::Tensor before = gradient.clone();
        queued_backward(tiny.store, units, queues[m], [&] { backward(pass); });
        EXPECT_TRUE(at::equal(gradient, before)) << "changed before run()";
        EXPECT_FALSE(queues[m].empty());
        if (index > 0) results.inputs.push_back(pass.input.grad());
      }
      if (m < ahead) continue;
      queues[m - ahead].run();
      EXPECT_TRUE(queues[m - ahead].empty());
    }
    results.weights = gradient.clone();
    return results;
  }

  TinyModel tiny;
  std::vector<BatchTensors> batches;
};

TEST_P(QueuedBackward, HasTheBitsOfABackwardInOnePiece) {
  for (const size_t index : {size_t{0}, size_t{1}}) {
    const Results expected = at_once(index);
    for (const size_t ahead : {0, 1, 2}) {
      const Results actual = queued(index, ahead);
      EXPECT_TRUE(at::equal(actual.weights, expected.weights))
          << "block " << index << ", " << ahead << " ahead";
      ASSERT_EQ(actual.inputs.size(), expected.inputs.size());
      for (size_t m = 0; m < expected.inputs.size(); ++m)
        EXPECT_TRUE(at::equal(actual.inputs[m], expected.inputs[m])) << "input " << m;
    }
  }
}

TEST_P(QueuedBackward, LeavesParametersThatWriteAtOnce) {
  const at::Tensor expected = at_once(1).weights;
  queued(1, 1);
  EXPECT_TRUE(at::equal(at_once(1).weights, expected));
}

std::vector<QueueCase> queue_cases() {
  std::vector<QueueCase> cases;
  for (const std::string& name : family_names()) {
    const std::string& family = name;
    cases.push_back({name + "_fp32", family});
    cases.push_back({name + "_bf16", family, DType::bf16});
    cases.push_back({name + "_dropout", family, DType::f32, {}, {}, 0.2});
    cases.push_back({name + "_again", family, DType::f32, {}, {"attention", "mlp"}});
    if (needs_whole_attention(family)) continue;
    cases.push_back({name + "_tensor", family, DType::f32, {1, 2}});
    if (has_experts(family)) continue;
    cases.push_back({name + "_sequence", family, DType::bf16, {1, 2, true}});
    cases.push_back(
        {name + "_async", family, DType::f32, {.rank = 1, .degree = 2, .sequence = true, .async = true}});
    if (may_slide(family)) continue;
    cases.push_back({name + "_ring", family, DType::f32, {}, {}, 0.0, {2, ContextMethod::ring}});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Layers, QueuedBackward, ::testing::ValuesIn(queue_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(QueuedBackwardOfUnits, CompletesGradientsThatAutogradLeftOrNothingWrote) {
  TinyModel tiny(tiny_config());
  UnitStore& unit = tiny.store.unit(1);
  unit.gradient().fill_(77.0);
  unit.start_gradient();
  Parameter& used = unit.parameters().at(0);
  const std::vector<int> units = {1};
  GradientQueue first;
  GradientQueue second;
  for (GradientQueue* queue : {&first, &second})
    queued_backward(tiny.store, units, *queue,
                    [&] { torch::autograd::backward({(used.value() * 3.0).sum()}, {}); });
  EXPECT_FALSE(used.value().grad().defined());
  EXPECT_TRUE(unit.gradient().eq(77.0).all().item<bool>());
  first.run();
  EXPECT_TRUE(used.gradient().eq(3.0).all().item<bool>());
  EXPECT_TRUE(unit.parameters().at(1).gradient().eq(0.0).all().item<bool>());
  second.run();
  EXPECT_TRUE(used.gradient().eq(6.0).all().item<bool>());
}

TEST(QueuedBackwardOfUnits, NeedsNoMemoryOfGradientsBeforeTheQueueRuns) {
  const ModelSpec spec = model_spec(tiny_config(), 0);
  ModelStore store(spec.units, rank_layout(spec.units, {.gather = DType::bf16}), {.alias_if_whole = false});
  store.initialize(1);
  UnitStore& unit = store.unit(0);
  unit.gather(at::empty({unit.gathered_size()}, at::kBFloat16));
  Parameter& table = unit.parameters().at(0);
  const at::Tensor contribution = at::ones_like(table.value().detach());
  GradientQueue queue;
  const std::vector<int> units = {0};
  queued_backward(store, units, queue, [&] { table.add_gradient(contribution); });
  unit.start_gradient(at::full({unit.gathered_size()}, 77.0, at::kFloat));
  queue.run();
  EXPECT_TRUE(table.gradient().eq(1.0).all().item<bool>());
}

TEST(QueuedBackwardOfUnits, DoesNotReadTheBatchWhenTheQueueRuns) {
  TinyModel tiny(tiny_config());
  BatchTensors batch(made_up_batch(2, 12, tiny.config.vocab_size));
  Context context;
  context.batch = &batch;
  const at::Tensor gradient = random_tensor({24, tiny.config.dim}, 1);
  UnitStore& unit = tiny.store.unit(0);
  const auto backward = [&] {
    unit.start_gradient();
    torch::autograd::backward(forward_in_graph(*tiny.model.blocks.at(0), {}, context), {gradient});
  };
  backward();
  const at::Tensor expected = unit.gradient().clone();
  GradientQueue queue;
  const std::vector<int> units = {0};
  queued_backward(tiny.store, units, queue, backward);
  batch.tokens.fill_(0);
  queue.run();
  EXPECT_TRUE(at::equal(unit.gradient(), expected));
}

TEST(QueuedBackwardOfUnits, AFailedBackwardLeavesParametersThatWriteAtOnce) {
  TinyModel tiny(tiny_config());
  GradientQueue queue;
  const std::vector<int> units = {1};
  EXPECT_THROW(queued_backward(tiny.store, units, queue, [] { throw Error("failed"); }), Error);
  for (const Parameter& parameter : tiny.store.unit(1).parameters()) EXPECT_FALSE(parameter.deferred());
}

}  // namespace
}  // namespace stepforge::testing
