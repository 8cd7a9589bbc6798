// SPDX-License-Identifier: Apache-2.0
// What layers of multi-token prediction take, against plain fp64 operations; its cost against the allocator.
#include <ATen/ops/embedding.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "stepforge/catalog/mtp_layers.h"
#include "stepforge/data/tokens_ahead.h"
#include "stepforge/modelspec/call_cost.h"
#include "stepforge/nn/list_block.h"
#include "stepforge/storage/queued_backward.h"
#include "tests/nn/reference.h"
#include "tests/nn/tiny_model.h"
#include "tests/support/in_graph.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kMtpLength = 24;

ModelConfig two_depths() {
  ModelConfig config = tiny_config("deepseek_v3");
  config.n_mtp_layers = 2;
  return config;
}

/// Two rows with documents of 1, 6, 17 and 24 tokens.
Batch ragged_batch(int64_t vocab) {
  Batch batch = empty_batch(kMtpLength, 2);
  append_row(made_up_row(0, kMtpLength, vocab, {1, 7}), 0, batch);
  append_row(made_up_row(1, kMtpLength, vocab), 1, batch);
  add_tokens_ahead(batch, 60);
  return batch;
}

/// Of token i, the row of token i + ahead in x if that token is in the same document, one by one.
at::Tensor later_rows(const at::Tensor& x, const Batch& batch, int64_t ahead) {
  std::vector<at::Tensor> rows;
  for (size_t document = 0; document + 1 < batch.cu_seqlens.size(); ++document) {
    for (int64_t i = batch.cu_seqlens[document]; i < batch.cu_seqlens[document + 1]; ++i)
      rows.push_back(i + ahead < batch.cu_seqlens[document + 1] ? x[i + ahead] : at::zeros_like(x[i]));
  }
  return at::stack(rows);
}

ListBlock mtp_block(TinyModel& tiny, const std::string& prefix, const std::string& last_norm) {
  const CallList calls =
      mtp_layer(prefix, "", last_norm, tiny.config.dim, {.norm_eps = tiny.config.norm_eps}).list;
  return {calls, calls, tiny.store.lookup(), std::make_shared<const LayerResources>()};
}

class Mtp : public ::testing::TestWithParam<int64_t> {
 protected:
  Mtp() : tiny(two_depths()), batch(ragged_batch(tiny.config.vocab_size)) {
    context.batch = &batch;
    for (size_t u = 0; u < tiny.store.size(); ++u) {
      for (size_t i = 0; i < tiny.store.unit(u).parameters().size(); ++i) {
        at::Tensor master = tiny.store.unit(u).master_view(i);
        const bool norm = tiny.store.unit(u).spec().parameters[i].tag == ParameterTag::norm;
        master.copy_(random_tensor(master.sizes(), 100 * u + i) * 0.2 + (norm ? 1.0 : 0.0));
      }
    }
    tiny.start_gradients();
  }

  TinyModel tiny;
  BatchTensors batch;
  Context context;
};

TEST_P(Mtp, EmbeddingsOfLaterTokensAreOfTheSameDocumentInForwardAndBackward) {
  const int64_t ahead = GetParam();
  Parameter& table = tiny.parameter("embedding.weight");
  const at::Tensor table64 = leaf64(table.value());
  const at::Tensor cotangent = random_tensor({2 * kMtpLength, tiny.config.dim}, 3);
  const CallList calls =
      embedding_layer("embedding", "", tiny.config.vocab_size, tiny.config.dim, {}, /*ahead=*/60).list;
  ListBlock block(calls, calls, tiny.store.lookup(), std::make_shared<const LayerResources>());
  const Bundle made = forward_in_graph(block, {}, context);
  ASSERT_EQ(made.size(), 61U);
  const at::Tensor expected =
      later_rows(at::embedding(table64, batch.tokens.to(at::kLong)), batch.host, ahead);
  EXPECT_TRUE(at::equal(made.at(static_cast<size_t>(ahead)).detach().to(at::kDouble), expected.detach()));
  torch::autograd::backward({made.at(static_cast<size_t>(ahead))}, {cotangent});
  if (!expected.requires_grad()) {  // no document is so long
    EXPECT_TRUE(at::equal(table.gradient(), at::zeros_like(table.gradient())));
    return;
  }
  torch::autograd::backward({expected}, {cotangent.to(at::kDouble)});
  expect_near(table.gradient(), table64.grad(), 1e-6, "table");
}

INSTANTIATE_TEST_SUITE_P(Depths, Mtp, ::testing::Values(1, 2, 6, 23, 24, 60));

TEST_F(Mtp, EachDepthNormsWhatItTakesByTheHeadOfTheDepthBefore) {
  const double eps = tiny.config.norm_eps;
  for (int64_t depth = 1; depth <= 2; ++depth) {
    const std::string prefix = mtp_name(tiny.config, depth) + ".mtp";
    const std::vector<std::string> names = {prefix + ".embedding_norm", mtp_norm(tiny.config, depth - 1),
                                            prefix + ".hidden_norm", prefix + ".projection"};
    ListBlock block = mtp_block(tiny, prefix, names[1]);
    const at::Tensor hidden = random_tensor({2 * kMtpLength, tiny.config.dim}, 4).set_requires_grad(true);
    const at::Tensor embedded = random_tensor({2 * kMtpLength, tiny.config.dim}, 5).set_requires_grad(true);
    const at::Tensor cotangent = random_tensor({2 * kMtpLength, tiny.config.dim}, 6);
    const at::Tensor out = forward_in_graph(block, {hidden, embedded}, context).at(0);
    torch::autograd::backward({out}, {cotangent});

    std::vector<at::Tensor> weights;
    for (const std::string& name : names) weights.push_back(leaf64(tiny.parameter(name).value()));
    const at::Tensor hidden64 = leaf64(hidden);
    const at::Tensor embedded64 = leaf64(embedded);
    const at::Tensor normed = reference_norm(reference_norm(hidden64, weights[1], eps), weights[2], eps);
    const at::Tensor later = reference_norm(embedded64, weights[0], eps);
    const at::Tensor expected = at::matmul(at::cat({later, normed}, 1), weights[3].t());
    torch::autograd::backward({expected}, {cotangent.to(at::kDouble)});
    constexpr double kTolerance = 2e-6;
    expect_near(out, expected, kTolerance, "out");
    expect_near(hidden.grad(), hidden64.grad(), kTolerance, "hidden");
    expect_near(embedded.grad(), embedded64.grad(), kTolerance, "embedded");
    for (size_t i = 0; i < names.size(); ++i)
      expect_near(tiny.parameter(names[i]).gradient(), weights[i].grad(), kTolerance, names[i].c_str());
  }
}

struct MeasuredMtp {
  int64_t saved = 0;
  int64_t forward_peak = 0;
  int64_t backward_peak = 0;
  int64_t queued = 0;
};

MeasuredMtp measure_mtp(TinyModel& tiny, const BatchTensors& batch, DType compute, bool queue) {
  Context context;
  context.batch = &batch;
  const std::string prefix = mtp_name(tiny.config, 1) + ".mtp";
  ListBlock block = mtp_block(tiny, prefix, "head.norm");
  MeasuredMtp measured;
  for (int round = 0; round < 2; ++round) {  // libtorch allocates more in its first call
    const auto input = [&](int seed) {
      at::Tensor x = random_tensor({batch.token_count(), tiny.config.dim}, seed, scalar_type(compute));
      return x.set_requires_grad(true);
    };
    const Bundle inputs = {input(1), input(2)};
    at::Tensor gradient = random_tensor(inputs[0].sizes(), 3, scalar_type(compute));
    reset_cpu_peak();
    const int64_t before = cpu_memory().live_bytes;
    at::Tensor out = forward_in_graph(block, inputs, context).at(0);
    const auto output = static_cast<int64_t>(out.nbytes());
    measured.forward_peak = cpu_memory().peak_bytes - before;
    measured.saved = cpu_memory().live_bytes - before - output;
    reset_cpu_peak();
    const int64_t between = cpu_memory().live_bytes;
    GradientQueue pending;
    std::vector<int> units(tiny.store.size());
    for (size_t u = 0; u < units.size(); ++u) units[u] = static_cast<int>(u);
    const auto backward = [&] { torch::autograd::backward({out}, {gradient}); };
    if (queue)
      queued_backward(tiny.store, units, pending, backward);
    else
      backward();
    measured.backward_peak = cpu_memory().peak_bytes - between;
    out.reset();
    gradient.reset();
    const auto input_gradients = static_cast<int64_t>(2 * inputs[0].grad().nbytes());
    measured.queued = cpu_memory().live_bytes - before - input_gradients + output;
    pending.run();
  }
  return measured;
}

TEST(MtpCost, SavedBytesAreThoseOfTheAllocatorAndPeaksAreBounds) {
  install_cpu_allocator();
  for (const DType compute : {DType::f32, DType::bf16}) {
    SCOPED_TRACE(dtype_name(compute));
    TinyModel tiny(two_depths(), compute);
    tiny.start_gradients();
    const BatchTensors batch(made_up_batch(4, 128, tiny.config.vocab_size));
    const int64_t width = tiny.config.dim;
    const LayerSpec layer = mtp_layer("mtp", "", "norm", width, {});
    const BlockCost cost = list_cost(layer.list, {.tokens = batch.token_count(), .compute = compute});
    const MeasuredMtp measured = measure_mtp(tiny, batch, compute, /*queue=*/false);
    EXPECT_EQ(cost.saved_bytes, measured.saved);
    EXPECT_EQ(cost.saved_bytes, batch.token_count() * (3 * width * dtype_bytes(compute) + 3 * 4));
    // libtorch's bf16 products on the CPU allocate scratch.
    if (compute == DType::bf16) continue;
    const auto expect_bound = [](int64_t bound, int64_t actual, const char* name) {
      EXPECT_GE(bound, actual) << name;
      EXPECT_LE(static_cast<double>(bound), 1.4 * static_cast<double>(actual)) << name;
    };
    expect_bound(cost.forward_peak_bytes, measured.forward_peak, "forward");
    expect_bound(cost.backward_peak_bytes, measured.backward_peak, "backward");
    const MeasuredMtp queued = measure_mtp(tiny, batch, compute, /*queue=*/true);
    expect_bound(cost.backward_input_peak_bytes, queued.backward_peak, "backward of inputs");
    EXPECT_EQ(cost.queued_bytes, queued.queued);
  }
}

}  // namespace
}  // namespace stepforge::testing
