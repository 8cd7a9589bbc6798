// SPDX-License-Identifier: Apache-2.0
// Operations on parts of a vocabulary, combined over ranks, against the whole.
#include "stepforge/storage/tensor_collectives.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "stepforge/base/error.h"
#include "stepforge/kernels/cross_entropy.h"
#include "stepforge/kernels/embedding.h"
#include "stepforge/kernels/kernel_list.h"
#include "stepforge/modelspec/call_passes.h"
#include "stepforge/modelspec/calls/linear.h"
#include "stepforge/nn/list_block.h"
#include "stepforge/nn/slices.h"
#include "tests/kernels/compare.h"
#include "tests/support/in_graph.h"
#include "tests/support/rank_threads.h"
#include "tests/support/throws.h"
#include "tests/support/whole_head.h"

namespace stepforge::testing {
namespace {

using PartBody = std::function<void(const TensorExchange& ranks, const TensorParallel& tensor)>;

/// Runs `body` as each of `degree` ranks.
void on_parts(int degree, const PartBody& body, bool async = false) {
  const auto run = [&](World& world) -> std::string {
    const RankId id{world.rank(), world.size()};
    const RankLayout layout = rank_layout({}, {.dims = {.dp_shard = 1, .tp = degree}}, id);
    std::vector<GroupLane> lanes = {{layout.tensor_group, Lane::compute}};
    if (async) lanes.push_back({layout.tensor_group, Lane::peer});
    const GroupCommunicators groups(world, layout, lanes);
    const TensorParallel tensor{.rank = id.rank, .degree = degree, .sequence = async, .async = async};
    body(tensor_exchange(groups, tensor), tensor);
    return "";
  };
  for (const std::string& result : as_threads().run(degree, run, {60, 60})) EXPECT_EQ(result, "");
}

/// Integers from -3 to 3, so that every sum of this test is exact in bf16 too.
at::Tensor small_integers(at::IntArrayRef shape, uint64_t seed) {
  return (random_tensor(shape, seed) * 2).round().clamp(-3, 3);
}

at::Tensor rows_of(const at::Tensor& whole, const TensorParallel& tensor) {
  const ShardRange part = tensor.part_of(whole.size(0));
  return whole.narrow(0, part.begin, part.size()).contiguous();
}

TEST(TensorExchange, IsEmptyForASingleRank) {
  EXPECT_FALSE(tensor_exchange(single_rank_groups(), {}).several());
}

TEST(TensorExchange, SumAndLargestAreTheSameOnAllRanks) {
  on_parts(3, [](const TensorExchange& ranks, const TensorParallel& tensor) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      const at::Tensor values = at::full({5}, tensor.rank + 1, type);
      ranks.sum(values);
      EXPECT_TRUE(values.eq(6).all().item<bool>());
    }
    const at::Tensor largest = int_tensor({tensor.rank, 7 - tensor.rank, -5}).to(at::kFloat);
    ranks.max(largest);
    EXPECT_TRUE(at::equal(largest, int_tensor({2, 7, -5}).to(at::kFloat)));
    EXPECT_THROW(ranks.sum(int_tensor({1})), Error);
  });
}

// Finds what went wrong in SkyRL#1886: the sum of a copy, thrown away.
TEST(TensorExchange, ATensorThatIsNotContiguousIsRefused) {
  on_parts(2, [](const TensorExchange& ranks, const TensorParallel&) {
    const at::Tensor columns = at::zeros({4, 5}).narrow(1, 0, 2);
    EXPECT_CONTAINS(message_of<Error>([&] { ranks.sum(columns); }), "is not contiguous");
  });
}

at::Tensor all_slices(const at::Tensor& slice, const TensorExchange& ranks) {
  at::Tensor whole = at::empty({ranks.parallel.degree * slice.size(0), slice.size(1)}, slice.options());
  ranks.gather(slice, whole);
  return whole;
}

at::Tensor sum_of_slice(const at::Tensor& whole, const TensorExchange& ranks) {
  at::Tensor slice = at::empty({slice_size(whole.size(0), ranks), whole.size(1)}, whole.options());
  ranks.sum_slice(whole, slice);
  return slice;
}

TEST(TensorExchange, SlicesAreGatheredAndSummedInOrder) {
  on_parts(3, [](const TensorExchange& ranks, const TensorParallel& tensor) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor slice = at::full({2, 5}, tensor.rank + 1, type);
      const at::Tensor whole = all_slices(slice, ranks);
      EXPECT_TRUE(at::equal(whole.select(1, 0), int_tensor({1, 1, 2, 2, 3, 3}).to(type)));
      const at::Tensor shares = whole * (tensor.rank + 1);
      EXPECT_TRUE(at::equal(sum_of_slice(shares, ranks), at::full({2, 5}, 6 * (tensor.rank + 1), type)));
    }
    EXPECT_CONTAINS(message_of<Error>([&] { sum_of_slice(at::zeros({4, 5}), ranks); }),
                    "4 tokens cannot be divided into 3 equal slices");
  });
}

/// A linear layer pair whose weights are divided over the ranks: its result and all gradients.
std::vector<at::Tensor> divided_pair(const TensorExchange& ranks, at::ScalarType type, bool trained) {
  const int64_t rank = ranks.parallel.rank;
  const auto weight = [&](const char* name, std::vector<int64_t> shape, std::size_t dimension,
                          uint64_t seed) {
    ParameterSpec spec{name, shape, {{"weight", name, shape[0], {}}}};
    SubTensor& part = spec.sub_tensors[0];
    part.tensor_shape = shape;
    part.tensor_shape[dimension] *= ranks.parallel.degree;
    part.offsets = {0, 0};
    part.offsets[dimension] = rank * shape[dimension];
    at::Tensor value = small_integers(shape, seed + static_cast<uint64_t>(rank)).to(type);
    if (trained) value.set_requires_grad(true);
    return std::pair(spec, value);
  };
  const auto [in_spec, in_value] = weight("into", {7, 5}, 0, 10);
  const auto [out_spec, out_value] = weight("out", {5, 7}, 1, 20);
  const auto gradient = [&](const ParameterSpec& spec) {
    return trained ? at::zeros(spec.shape) : at::Tensor();
  };
  Parameter into(&in_spec, in_value, gradient(in_spec));
  Parameter out(&out_spec, out_value, gradient(out_spec));
  at::Tensor x = small_integers({4, 5}, 30 + static_cast<uint64_t>(rank)).to(type);
  x.set_requires_grad(true);
  ListWriter writer("pair");
  const int in = writer.input({"x", 5});
  const int hidden = writer.call(kLinear, "into", {in}, {&in_spec});
  const CallList list =
      over_tensor(writer.finish({writer.call(kLinear, "out", {hidden}, {&out_spec})}), ranks.parallel);
  const ParameterLookup lookup = [&](std::string_view name) -> Parameter& {
    return name == "into" ? into : out;
  };
  ListBlock block(list, list, lookup,
                  std::make_shared<const LayerResources>(LayerResources{.tensor = ranks}));
  const BatchTensors batch(made_up_batch(1, 4 * ranks.parallel.degree, 16));
  Context context;
  context.batch = &batch;
  const at::Tensor result = forward_in_graph(block, {x}, context).front();
  const at::Tensor x_gradient = torch::autograd::grad(
      {result}, {x}, {small_integers({4, 5}, 40 + static_cast<uint64_t>(rank)).to(type)})[0];
  return {result.detach(), x_gradient, into.gradient(), out.gradient()};
}

TEST(TensorExchange, SlicesThatPassBesideTheProductsGiveTheSameBits) {
  for (const int degree : {2, 3, 4})
    for (const bool trained : {true, false})
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
        on_parts(
            degree,
            [&](const TensorExchange& ranks, const TensorParallel&) {
              TensorExchange alone = ranks;
              alone.parallel.async = false;
              const std::vector<at::Tensor> expected = divided_pair(alone, type, trained);
              const std::vector<at::Tensor> found = divided_pair(ranks, type, trained);
              for (std::size_t i = 0; i < (trained ? 4 : 2); ++i)
                EXPECT_TRUE(at::equal(found[i], expected[i])) << degree << " " << i;
            },
            /*async=*/true);
}

TEST(TensorExchange, EmbeddingsOfPartsAddUpToTheWhole) {
  const at::Tensor table = random_tensor({13, 19}, 1);
  const at::Tensor tokens = int_tensor({12, 0, 4, 12, 7, 4, 4});
  const at::Tensor whole = at::empty({7, 19});
  embedding_forward(tokens, table, whole);
  const at::Tensor grad = random_tensor({7, 19}, 2);
  const at::Tensor whole_grad = at::empty({13, 19});
  embedding_backward(tokens, grad, whole_grad, false);
  on_parts(3, [&](const TensorExchange& ranks, const TensorParallel& tensor) {
    const VocabularyPart part{tensor.part_of(13).begin, 13};
    const at::Tensor rows = rows_of(table, tensor);
    const at::Tensor out = at::empty({7, 19});
    embedding_forward(tokens, rows, out, part);
    const at::Tensor reference = at::empty_like(out);
    reference::embedding_forward(tokens, rows, reference, part, 1.0);
    EXPECT_TRUE(at::equal(out, reference));
    ranks.sum(out);
    EXPECT_TRUE(at::equal(out, whole));
    const at::Tensor part_grad = at::empty_like(rows);
    embedding_backward(tokens, grad, part_grad, false, part);
    EXPECT_TRUE(at::equal(part_grad, rows_of(whole_grad, tensor)));
    const at::Tensor reference_grad = at::empty_like(rows);
    reference::embedding_backward(tokens, grad, reference_grad, false, part, 1.0);
    expect_close(part_grad, reference_grad, 8 * kEps32, "gradient");
    EXPECT_THROW(embedding_forward(int_tensor({13, 0, 0, 0, 0, 0, 0}), rows, out, part), Error);
  });
}

TEST(TensorExchange, LossAndGradientsOfPartsAreThoseOfTheWhole) {
  const int64_t vocabulary = 53;
  std::vector<int32_t> ids;
  for (int32_t n = 0; n < 29; ++n) ids.push_back(n % 5 == 2 ? -100 : n * 31 % vocabulary);
  const at::Tensor labels = int_tensor(ids);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor hidden = random_tensor({29, 24}, 7).to(type);
    const at::Tensor weight = random_tensor({vocabulary, 24}, 8).to(type);
    const LinearCrossEntropyOutputs whole{.token_loss = at::empty({29}, at::kDouble),
                                          .grad_hidden = at::empty({29, 24}, at::kDouble),
                                          .grad_weight = at::empty({vocabulary, 24}, at::kDouble)};
    whole_head(hidden.to(at::kDouble), weight.to(at::kDouble), labels, {scalar(0.25), 0.01}, whole);
    const double tolerance = type == at::kFloat ? 64 * kEps32 : 4 * kEps16;
    for (const auto& [chunk, whole_logits] : {std::pair<int64_t, bool>{4, false}, {100, false}, {4, true}}) {
      on_parts(4, [&](const TensorExchange& ranks, const TensorParallel& tensor) {
        const VocabularyPart part{tensor.part_of(vocabulary).begin, vocabulary};
        const at::Tensor rows = rows_of(weight, tensor);
        const LinearCrossEntropyOutputs own{.token_loss = at::empty({29}),
                                            .grad_hidden = at::empty({29, 24}, type),
                                            .grad_weight = at::empty({rows.size(0), 24})};
        TensorExchange exchange = ranks;
        exchange.parallel.whole_logits = whole_logits;
        linear_cross_entropy(hidden, rows, labels, {scalar(0.25), 0.01}, chunk, own, part, exchange);
        ranks.sum(own.grad_hidden);
        expect_close(own.token_loss, whole.token_loss, tolerance, "loss");
        expect_close(own.grad_hidden, whole.grad_hidden, tolerance, "grad_hidden");
        expect_close(own.grad_weight, rows_of(whole.grad_weight, tensor), tolerance, "grad_weight");
        const LinearCrossEntropyOutputs evaluated{.token_loss = at::empty({29})};
        linear_cross_entropy(hidden, rows, labels, {}, chunk, evaluated, part, exchange);
        EXPECT_TRUE(at::equal(evaluated.token_loss, own.token_loss));
      });
    }
  }
}

TEST(TensorExchange, ALabelOutsideTheWholeVocabularyIsRefused) {
  on_parts(2, [](const TensorExchange& ranks, const TensorParallel& tensor) {
    const LinearCrossEntropyOutputs own{.token_loss = at::empty({1})};
    EXPECT_THROW(linear_cross_entropy(at::zeros({1, 4}), at::zeros({5, 4}), int_tensor({10}), {}, 4, own,
                                      {tensor.rank * 5, 10}, ranks),
                 Error);
  });
}

}  // namespace
}  // namespace stepforge::testing
