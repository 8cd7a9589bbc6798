// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/attention.h"

#include <algorithm>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "stepforge/base/error.h"
#include "stepforge/kernels/cpu/bf16_blocks.h"
#include "stepforge/kernels/kernel_table.h"
#include "tests/kernels/compare.h"

namespace stepforge::testing {
namespace {

/// Of bf16. In matrix tiles, of heads of even size, probabilities and gradients of scores are rounded too.
double narrow_tolerance(const AttentionShape& shape) {
  const bool tiles =
      cpu::bf16_blocks() == cpu::Bf16Blocks::tiles && shape.head_dim % 2 == 0 && shape.value_size() % 2 == 0;
  return tiles ? 4 * kEps16 : kEps16;
}

struct AttentionResults {
  at::Tensor out;
  at::Tensor lse;
  at::Tensor grad_qkv;
  at::Tensor grad_sinks = {};
};

at::ScalarType statistics_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

AttentionResults run(const at::Tensor& qkv, const at::Tensor& grad_out, const AttentionShape& shape,
                     const std::vector<int32_t>& boundaries, const at::Tensor& sinks = {}) {
  AttentionResults r;
  r.out = at::empty({qkv.size(0), shape.out_width()}, qkv.options());
  r.lse = at::empty({qkv.size(0), shape.heads}, qkv.options().dtype(statistics_type(qkv)));
  r.grad_qkv = at::empty_like(qkv);
  const auto ranges = document_ranges(boundaries);
  attention_forward(split_qkv(qkv, shape), shape, ranges, r.out, r.lse, sinks);
  attention_backward(grad_out, split_qkv(qkv, shape), r.out, r.lse, shape, ranges,
                     split_qkv(r.grad_qkv, shape));
  if (!sinks.defined()) return r;
  r.grad_sinks = at::empty_like(sinks);
  attention_sink_gradient(grad_out, r.out, r.lse, sinks, shape, ranges, r.grad_sinks);
  return r;
}

AttentionShape make_shape(int64_t heads, int64_t kv_heads, int64_t head_dim) {
  return {.heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .scale = 1.0 / std::sqrt(static_cast<double>(head_dim))};
}

/// Documents shorter than, as long as and longer than every block size, one of a single token, one empty.
const std::vector<int32_t> kBoundaries = {0, 1, 1, 17, 65, 114, 210, 307, 560};

class AttentionShapes : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, int64_t>> {};

void expect_reference(const AttentionShape& shape, const at::Tensor& sinks = {}) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor qkv = random_tensor({kBoundaries.back(), shape.qkv_width()}, 1).to(type);
    const at::Tensor grad_out = random_tensor({kBoundaries.back(), shape.out_width()}, 2).to(type);
    const AttentionResults actual = run(qkv, grad_out, shape, kBoundaries, sinks);
    const AttentionResults expected = run(qkv.to(at::kDouble), grad_out.to(at::kDouble), shape, kBoundaries,
                                          sinks.defined() ? sinks.to(at::kDouble) : sinks);
    const bool narrow = type == at::kBFloat16;
    expect_close(actual.out, expected.out, narrow ? narrow_tolerance(shape) : 64 * kEps32, "out");
    expect_close(actual.lse, expected.lse, 32 * kEps32, "lse");
    // Sums of up to 253 differences dP - delta that nearly cancel; in bf16 delta comes from the rounded out.
    expect_close(actual.grad_qkv, expected.grad_qkv, narrow ? 4 * narrow_tolerance(shape) : 128 * kEps32,
                 "grad_qkv");
    if (sinks.defined())
      expect_close(actual.grad_sinks, expected.grad_sinks,
                   narrow ? 4 * narrow_tolerance(shape) : 128 * kEps32, "grad_sinks");
  }
}

/// More scores than the reference computes at once.
TEST(Attention, ReferencesOfLongDocumentsAreInBlocksOfQueries) {
  AttentionShape shape = make_shape(4, 2, 4);
  shape.window = 700;
  const std::vector<int32_t> boundaries = {0, 30, 2130};
  const at::Tensor qkv = random_tensor({2130, shape.qkv_width()}, 1);
  const at::Tensor grad_out = random_tensor({2130, shape.out_width()}, 2);
  KernelTable references;
  references.references_only = true;
  const AttentionResults kernel = run(qkv, grad_out, shape, boundaries);
  const ChargeMemory rank(make_rank_memory(references));
  const AttentionResults reference = run(qkv, grad_out, shape, boundaries);
  expect_close(reference.out, kernel.out, 64 * kEps32, "out");
  expect_close(reference.lse, kernel.lse, 32 * kEps32, "lse");
  expect_close(reference.grad_qkv, kernel.grad_qkv, 1024 * kEps32, "grad_qkv");
}

TEST_P(AttentionShapes, AgreesWithTheFp64Reference) {
  const auto [heads, kv_heads, head_dim] = GetParam();
  expect_reference(make_shape(heads, kv_heads, head_dim));
}

/// Multi-head latent attention: values are narrower or wider than keys.
TEST(AttentionValues, OfAnotherSizeThanKeysAgreeWithTheFp64Reference) {
  for (AttentionShape shape : {make_shape(4, 4, 24), make_shape(4, 2, 48), make_shape(2, 1, 10)}) {
    for (const int64_t value_dim : {7, 16, 32, 70}) {
      SCOPED_TRACE(value_dim);
      shape.value_dim = value_dim;
      expect_reference(shape);
    }
  }
}

TEST(AttentionValues, OfTheSizeOfKeysChangeNoBit) {
  AttentionShape shape = make_shape(4, 2, 24);
  const at::Tensor qkv = random_tensor({kBoundaries.back(), shape.qkv_width()}, 5);
  const at::Tensor grad_out = random_tensor({kBoundaries.back(), shape.out_width()}, 6);
  const AttentionResults before = run(qkv, grad_out, shape, kBoundaries);
  shape.value_dim = 24;
  const AttentionResults after = run(qkv, grad_out, shape, kBoundaries);
  EXPECT_TRUE(at::equal(after.out, before.out));
  EXPECT_TRUE(at::equal(after.grad_qkv, before.grad_qkv));
}

TEST(AttentionWindow, AgreesWithTheFp64Reference) {
  for (const int64_t window : {2, 5, 16, 48, 64, 97, 200}) {
    for (AttentionShape shape : {make_shape(4, 2, 32), make_shape(2, 1, 100)}) {
      SCOPED_TRACE(window);
      shape.window = window;
      expect_reference(shape);
    }
  }
}

TEST(AttentionCap, AgreesWithTheFp64ReferenceWithAndWithoutAWindow) {
  for (const double cap : {0.3, 1.0, 50.0}) {
    for (const int64_t window : {0, 48, 60}) {
      SCOPED_TRACE(window);
      AttentionShape shape = make_shape(4, 2, 32);
      shape.window = window;
      shape.cap = cap;
      expect_reference(shape);
    }
  }
}

TEST(AttentionCap, ReferenceGradientIsTheDerivative) {
  AttentionShape shape = make_shape(4, 2, 6);
  shape.cap = 0.7;
  shape.window = 4;
  const std::vector<int32_t> boundaries = {0, 5, 6, 19};
  const at::Tensor qkv = random_tensor({19, shape.qkv_width()}, 3).to(at::kDouble);
  const at::Tensor grad_out = random_tensor({19, shape.out_width()}, 4).to(at::kDouble);
  expect_derivative(
      [&](const at::Tensor& x) {
        return (run(x, grad_out, shape, boundaries).out * grad_out).sum().item<double>();
      },
      qkv, run(qkv, grad_out, shape, boundaries).grad_qkv, "qkv");
}

/// With two equal keys and values of 1 and 0 the output is that of two scores.
TEST(AttentionCap, BoundsTheScores) {
  AttentionShape shape = {.heads = 1, .kv_heads = 1, .head_dim = 2, .scale = 1.0, .cap = 2.0};
  const at::Tensor qkv = at::zeros({2, 6});
  qkv.slice(1, 0, 2).fill_(1000);     // queries
  qkv[1].slice(0, 2, 4).fill_(1000);  // the key of the second token: a score of 2e6
  qkv[1].slice(0, 4, 6).fill_(1);     // its value
  const AttentionResults r = run(qkv, at::zeros({2, 2}), shape, {0, 2});
  EXPECT_NEAR(r.out[1][0].item<double>(), 1.0 / (1.0 + std::exp(-2.0)), 1e-6);
  EXPECT_NEAR(r.lse[1][0].item<double>(), std::log(1.0 + std::exp(2.0)), 1e-6);
}

/// A key before all others of each document, with the score of the sink and the value 0.
TEST(AttentionSinks, AreScoresWithoutAValue) {
  const AttentionShape shape = {.heads = 2, .kv_heads = 1, .head_dim = 3, .scale = 1.0};
  const at::Tensor qkv = random_tensor({5, shape.qkv_width()}, 3).to(at::kDouble);
  const at::Tensor sinks = at::tensor({0.5, -1.5}, at::kDouble);
  const AttentionResults plain = run(qkv, at::zeros({5, 6}, at::kDouble), shape, {0, 5});
  const AttentionResults sunk = run(qkv, at::zeros({5, 6}, at::kDouble), shape, {0, 5}, sinks);
  const at::Tensor total = plain.lse.exp() + sinks.exp();
  expect_close(sunk.lse, total.log(), 1e-14, "lse");
  const at::Tensor share = (plain.lse.exp() / total).unsqueeze(-1);
  expect_close(sunk.out, (plain.out.view({5, 2, 3}) * share).view({5, 6}), 1e-14, "out");
}

TEST(AttentionSinks, AgreesWithTheFp64Reference) {
  for (const int64_t window : {0, 5, 48}) {
    for (const double cap : {0.0, 1.0}) {
      SCOPED_TRACE(window);
      AttentionShape shape = make_shape(4, 2, 32);
      shape.window = window;
      shape.cap = cap;
      // One that is far below all scores, and one far above.
      expect_reference(shape, at::tensor({0.3F, -40.0F, 2.0F, 9.0F}));
    }
  }
}

TEST(AttentionSinks, ReferenceGradientsAreTheDerivatives) {
  AttentionShape shape = make_shape(4, 2, 6);
  shape.window = 4;
  const std::vector<int32_t> boundaries = {0, 5, 6, 19};
  const at::Tensor qkv = random_tensor({19, shape.qkv_width()}, 3).to(at::kDouble);
  const at::Tensor grad_out = random_tensor({19, shape.out_width()}, 4).to(at::kDouble);
  const at::Tensor sinks = at::tensor({0.3, -1.0, 2.0, 1.0}, at::kDouble);
  const AttentionResults exact = run(qkv, grad_out, shape, boundaries, sinks);
  const auto product = [&](const at::Tensor& x, const at::Tensor& with) {
    return (run(x, grad_out, shape, boundaries, with).out * grad_out).sum().item<double>();
  };
  expect_derivative([&](const at::Tensor& x) { return product(x, sinks); }, qkv, exact.grad_qkv, "qkv");
  expect_derivative([&](const at::Tensor& x) { return product(qkv, x); }, sinks, exact.grad_sinks, "sinks");
}

TEST(AttentionSinks, DoNotDependOnTheNumberOfThreads) {
  const AttentionShape shape = make_shape(6, 2, 32);
  const at::Tensor qkv = random_tensor({kBoundaries.back(), shape.qkv_width()}, 5);
  const at::Tensor grad_out = random_tensor({kBoundaries.back(), shape.out_width()}, 6);
  const at::Tensor sinks = random_tensor({6}, 7);
  expect_same_for_all_threads([&]() -> std::vector<at::Tensor> {
    const AttentionResults r = run(qkv, grad_out, shape, kBoundaries, sinks);
    return {r.out, r.lse, r.grad_qkv, r.grad_sinks};
  });
}

/// A row at a time against a cache gives what all rows give at once.
TEST(AttentionSinks, CountInGeneration) {
  AttentionShape shape = make_shape(4, 2, 16);
  shape.window = 6;
  const at::Tensor sinks = at::tensor({0.3F, -40.0F, 2.0F, 9.0F});
  const at::Tensor qkv = random_tensor({11, shape.qkv_width()}, 8);
  const AttentionResults all = run(qkv, at::zeros({11, 64}), shape, {0, 11}, sinks);
  const QueryKeyValue parts = split_qkv(qkv, shape);
  const auto cache = [](const at::Tensor& rows) { return rows.reshape({1, 11, 2, 16}).contiguous(); };
  const at::Tensor queries = parts.q.slice(0, 7).contiguous().unsqueeze(0);
  const at::Tensor out = at::empty_like(queries);
  const std::vector<int64_t> past = {7};
  attention_cached(queries, cache(parts.k), cache(parts.v), past, shape, out, sinks);
  expect_close(out[0], all.out.slice(0, 7), 64 * kEps32, "out");
}

TEST(AttentionSinks, OfOtherHeadsAreRefused) {
  const AttentionShape shape = make_shape(2, 1, 16);
  const at::Tensor qkv = random_tensor({8, shape.qkv_width()}, 5);
  EXPECT_THROW(run(qkv, at::zeros({8, shape.out_width()}), shape, {0, 8}, at::zeros({3})), Error);
}

TEST(AttentionCap, ANegativeOneIsRefused) {
  AttentionShape shape = make_shape(2, 1, 16);
  shape.cap = -1.0;
  const at::Tensor qkv = random_tensor({8, shape.qkv_width()}, 5);
  EXPECT_THROW(run(qkv, at::zeros({8, shape.out_width()}), shape, {0, 8}), Error);
}

/// A query attends as if the document began with its window.
TEST(AttentionWindow, TheReferenceSeesNothingOutsideOfIt) {
  const AttentionShape whole = make_shape(4, 2, 6);
  AttentionShape shape = whole;
  shape.window = 5;
  const at::Tensor qkv = random_tensor({19, shape.qkv_width()}, 3).to(at::kDouble);
  const at::Tensor grad_out = at::zeros({19, shape.out_width()}, at::kDouble);
  const at::Tensor out = run(qkv, grad_out, shape, {0, 19}).out;
  for (int64_t query = 0; query < 19; ++query) {
    const int64_t first = std::max<int64_t>(query - 4, 0);
    const auto length = static_cast<int32_t>(query + 1 - first);
    const AttentionResults alone =
        run(qkv.slice(0, first, query + 1), grad_out.slice(0, 0, length), whole, {0, length});
    expect_close(out[query], alone.out[length - 1], 1e-14, "out");
  }
}

TEST(AttentionWindow, AsLongAsTheDocumentsChangesNoBit) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    AttentionShape shape = make_shape(4, 2, 32);
    const at::Tensor qkv = random_tensor({kBoundaries.back(), shape.qkv_width()}, 5).to(type);
    const at::Tensor grad_out = random_tensor({kBoundaries.back(), shape.out_width()}, 6).to(type);
    const AttentionResults whole = run(qkv, grad_out, shape, kBoundaries);
    shape.window = 253;
    const AttentionResults windowed = run(qkv, grad_out, shape, kBoundaries);
    EXPECT_TRUE(at::equal(windowed.out, whole.out));
    EXPECT_TRUE(at::equal(windowed.lse, whole.lse));
    EXPECT_TRUE(at::equal(windowed.grad_qkv, whole.grad_qkv));
  }
}

TEST(AttentionWindow, OfKeysWithoutPositionsOrNegativeIsRefused) {
  AttentionShape shape = make_shape(2, 1, 16);
  const at::Tensor qkv = random_tensor({8, shape.qkv_width()}, 5);
  const at::Tensor out = at::empty({8, shape.out_width()});
  const at::Tensor lse = at::empty({8, shape.heads});
  const std::vector<AttentionRange> earlier = {{0, 4, 0, 8, 4, /*causal=*/false}};
  EXPECT_NO_THROW(attention_forward(split_qkv(qkv, shape), shape, earlier, out, lse));
  shape.window = 3;
  EXPECT_THROW(attention_forward(split_qkv(qkv, shape), shape, earlier, out, lse), Error);
  shape.window = -1;
  EXPECT_THROW(attention_forward(split_qkv(qkv, shape), shape, document_ranges(std::vector{0, 8}), out, lse),
               Error);
}

INSTANTIATE_TEST_SUITE_P(Attention, AttentionShapes,
                         ::testing::Values(std::tuple{1, 1, 16}, std::tuple{8, 4, 32}, std::tuple{3, 1, 64},
                                           std::tuple{2, 2, 128}, std::tuple{4, 2, 24}, std::tuple{2, 1, 100},
                                           std::tuple{2, 1, 4}));

TEST(Attention, ReferenceGradientIsTheDerivative) {
  const AttentionShape shape = make_shape(4, 2, 6);
  const std::vector<int32_t> boundaries = {0, 5, 6, 19};
  const at::Tensor qkv = random_tensor({19, shape.qkv_width()}, 3).to(at::kDouble);
  const at::Tensor grad_out = random_tensor({19, shape.out_width()}, 4).to(at::kDouble);
  const AttentionResults exact = run(qkv, grad_out, shape, boundaries);
  expect_derivative(
      [&](const at::Tensor& x) {
        return (run(x, grad_out, shape, boundaries).out * grad_out).sum().item<double>();
      },
      qkv, exact.grad_qkv, "qkv");
}

TEST(Attention, DoesNotDependOnTheNumberOfThreads) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const AttentionShape shape = make_shape(6, 2, 32);
    const at::Tensor qkv = random_tensor({kBoundaries.back(), shape.qkv_width()}, 5).to(type);
    const at::Tensor grad_out = random_tensor({kBoundaries.back(), shape.out_width()}, 6).to(type);
    expect_same_for_all_threads([&]() -> std::vector<at::Tensor> {
      const AttentionResults r = run(qkv, grad_out, shape, kBoundaries);
      return {r.out, r.lse, r.grad_qkv};
    });
  }
}

TEST(Attention, ADocumentGivesTheSameBitsAloneAndPacked) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const AttentionShape shape = make_shape(4, 2, 32);
    const at::Tensor qkv = random_tensor({kBoundaries.back(), shape.qkv_width()}, 7).to(type);
    const at::Tensor grad_out = random_tensor({kBoundaries.back(), shape.out_width()}, 8).to(type);
    const AttentionResults packed = run(qkv, grad_out, shape, kBoundaries);
    for (size_t i = 1; i < kBoundaries.size(); ++i) {
      const int64_t begin = kBoundaries[i - 1];
      const int64_t end = kBoundaries[i];
      if (begin == end) continue;
      const AttentionResults alone = run(qkv.slice(0, begin, end), grad_out.slice(0, begin, end), shape,
                                         {0, static_cast<int32_t>(end - begin)});
      EXPECT_TRUE(at::equal(packed.out.slice(0, begin, end), alone.out)) << "document " << i;
      EXPECT_TRUE(at::equal(packed.grad_qkv.slice(0, begin, end), alone.grad_qkv)) << "document " << i;
    }
  }
}

TEST(Attention, ATokenDoesNotSeeLaterOnes) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const AttentionShape shape = make_shape(2, 1, 16);
    at::Tensor qkv = random_tensor({150, shape.qkv_width()}, 9).to(type);
    const at::Tensor grad_out = random_tensor({150, shape.out_width()}, 10).to(type);
    const AttentionResults before = run(qkv, grad_out, shape, {0, 150});
    qkv.slice(0, 101, 150).fill_(1e6);
    const AttentionResults after = run(qkv, grad_out, shape, {0, 150});
    EXPECT_TRUE(at::equal(before.out.slice(0, 0, 101), after.out.slice(0, 0, 101)));
    EXPECT_FALSE(at::equal(before.out.slice(0, 101, 102), after.out.slice(0, 101, 102)));
  }
}

TEST(Attention, LargeScoresStayFinite) {
  const AttentionShape shape = make_shape(2, 1, 16);
  const at::Tensor qkv = random_tensor({130, shape.qkv_width()}, 11) * 200;
  const at::Tensor grad_out = random_tensor({130, shape.out_width()}, 12);
  const AttentionResults actual = run(qkv, grad_out, shape, {0, 130});
  const AttentionResults expected = run(qkv.to(at::kDouble), grad_out.to(at::kDouble), shape, {0, 130});
  // Scores reach 1e5: their absolute error, not their relative one, is the relative error of the
  // probabilities.
  const double largest_score = expected.lse.abs().max().item<double>();
  expect_close(actual.out, expected.out, 64 * kEps32 * largest_score, "out");
  EXPECT_TRUE(actual.grad_qkv.isfinite().all().item<bool>());
}

void expect_cached(const AttentionShape& shape) {
  constexpr int64_t kLength = 50;
  constexpr int64_t kCapacity = 64;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const at::Tensor qkv = random_tensor({2 * kLength, shape.qkv_width()}, 13).to(type);
    const AttentionResults whole =
        run(qkv, at::empty({2 * kLength, shape.out_width()}, qkv.options()).zero_(), shape,
            {0, kLength, 2 * kLength});
    const at::Tensor rows = qkv.view({2, kLength, shape.qkv_width()});
    const auto cache_of = [&](int64_t column, int64_t dim) {
      at::Tensor cache = at::empty({2, kCapacity, shape.kv_heads, dim}, qkv.options());
      cache.fill_(1e4);  // entries behind the valid ones must not be read
      cache.slice(1, 0, kLength)
          .copy_(rows.narrow(2, column, shape.kv_heads * dim).view({2, kLength, shape.kv_heads, dim}));
      return cache;
    };
    const at::Tensor keys = cache_of(shape.q_width(), shape.head_dim);
    const at::Tensor values = cache_of(shape.q_width() + shape.k_width(), shape.value_size());
    const std::vector<int64_t> past = {20, 47};
    constexpr int64_t kChunk = 3;
    const at::Tensor q = at::cat({rows[0].slice(0, 20, 23), rows[1].slice(0, 47, 50)})
                             .slice(1, 0, shape.q_width())
                             .contiguous()
                             .view({2, kChunk, shape.q_width()});
    const at::Tensor out = at::empty({2, kChunk, shape.out_width()}, q.options());
    attention_cached(q, keys, values, past, shape, out);
    const at::Tensor expected = whole.out.view({2, kLength, shape.out_width()});
    const double tolerance = type == at::kBFloat16 ? narrow_tolerance(shape) : 64 * kEps32;
    expect_close(out[0], expected[0].slice(0, 20, 23), tolerance, "row 0");
    expect_close(out[1], expected[1].slice(0, 47, 50), tolerance, "row 1");
  }
}

class CachedAttention : public ::testing::TestWithParam<int64_t> {};

TEST_P(CachedAttention, AgreesWithAttentionOverTheWholeDocument) {
  AttentionShape shape = make_shape(6, 2, 40);
  shape.window = GetParam();
  shape.cap = GetParam() == 9 ? 0.5 : 0.0;
  expect_cached(shape);
  shape.value_dim = 28;
  expect_cached(shape);
}

INSTANTIATE_TEST_SUITE_P(Windows, CachedAttention, ::testing::Values(0, 1, 9, 48));

class SomeQueries : public ::testing::TestWithParam<int64_t> {};

/// Some of the queries, each with all keys of its document: cut anywhere, also in the middle of a block.
TEST_P(SomeQueries, GiveTheBitsOfAll) {
  AttentionShape shape = make_shape(4, 2, 24);
  shape.window = GetParam();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor qkv = random_tensor({560, shape.qkv_width()}, 17).to(type);
    const at::Tensor grad_out = random_tensor({560, shape.out_width()}, 18).to(type);
    const AttentionResults whole = run(qkv, grad_out, shape, kBoundaries);
    const QueryKeyValue all = split_qkv(qkv, shape);
    at::Tensor key_gradient = at::zeros({560, 2 * shape.kv_heads * shape.head_dim}, at::kFloat);
    // Two sets of queries that together are all of them, each in two pieces.
    const std::vector<std::vector<std::pair<int64_t, int64_t>>> sets = {{{0, 131}, {390, 560}},
                                                                        {{131, 320}, {320, 390}}};
    for (const auto& pieces : sets) {
      std::vector<AttentionRange> ranges;
      std::vector<at::Tensor> rows;
      for (size_t d = 1; d < kBoundaries.size(); ++d) {
        const int64_t begin = kBoundaries[d - 1];
        const int64_t end = kBoundaries[d];
        int64_t held = 0;
        if (begin == end) continue;
        const size_t before = ranges.size();
        for (const auto& [first, last] : pieces) {
          const int64_t from = std::max(first, begin);
          const int64_t to = std::min(last, end);
          if (from < to) ranges.push_back({held + from - first, to - from, begin, end - begin, from - begin});
          held += last - first;
        }
        if (ranges.size() == before) ranges.push_back({0, 0, begin, end - begin, 0});
      }
      const auto take = [&](const at::Tensor& tensor) {
        std::vector<at::Tensor> parts;
        for (const auto& [first, last] : pieces) parts.push_back(tensor.slice(0, first, last));
        return at::cat(parts);
      };
      const QueryKeyValue some{take(all.q), all.k, all.v};
      const at::Tensor out = at::empty_like(take(whole.out));
      const at::Tensor lse = at::empty_like(take(whole.lse));
      attention_forward(some, shape, ranges, out, lse);
      EXPECT_TRUE(at::equal(out, take(whole.out)));
      EXPECT_TRUE(at::equal(lse, take(whole.lse)));
      const at::Tensor gradient = at::empty_like(qkv);
      const at::Tensor q_gradient = at::empty_like(some.q, at::MemoryFormat::Contiguous);
      gradient.fill_(1e4);
      attention_backward(take(grad_out), some, out, lse, shape, ranges,
                         {q_gradient, split_qkv(gradient, shape).k, split_qkv(gradient, shape).v});
      EXPECT_TRUE(at::equal(q_gradient, take(split_qkv(whole.grad_qkv, shape).q)));
      key_gradient += gradient.slice(1, shape.out_width(), shape.qkv_width());
    }
    expect_close(key_gradient, whole.grad_qkv.slice(1, shape.out_width(), shape.qkv_width()).to(at::kDouble),
                 type == at::kFloat ? 128 * kEps32 : 4 * kEps16, "keys and values");
  }
}

INSTANTIATE_TEST_SUITE_P(Windows, SomeQueries, ::testing::Values(0, 33));

/// As in a ring, where queries see a part of the keys before them, and other queries none of them.
TEST(Attention, QueriesThatSeeTheFirstKeysOnlyAgreeWithTheReference) {
  const AttentionShape shape = make_shape(4, 2, 24);
  const std::vector<AttentionRange> ranges = {
      {0, 70, 0, 300, 213, false}, {110, 150, 0, 300, 150, true}, {70, 30, 310, 20, 20, false}};
  const auto attended = [&](at::ScalarType type) {
    const QueryKeyValue inputs{random_tensor({270, shape.out_width()}, 20).to(type),
                               random_tensor({330, 2 * shape.head_dim}, 21).to(type),
                               random_tensor({330, 2 * shape.head_dim}, 22).to(type)};
    const at::Tensor grad_out = random_tensor({270, shape.out_width()}, 23).to(type);
    const at::Tensor out = at::zeros({270, shape.out_width()}, inputs.q.options());
    const at::Tensor lse = at::zeros({270, shape.heads}, inputs.q.options().dtype(statistics_type(inputs.q)));
    attention_forward(inputs, shape, ranges, out, lse);
    const QueryKeyValue gradients{at::zeros_like(inputs.q), at::zeros_like(inputs.k),
                                  at::zeros_like(inputs.v)};
    attention_backward(grad_out, inputs, out, lse, shape, ranges, gradients);
    return std::vector<at::Tensor>{out, lse, gradients.q, gradients.k, gradients.v};
  };
  const std::vector<at::Tensor> expected = attended(at::kDouble);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const std::vector<at::Tensor> actual = attended(type);
    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_TRUE(actual[i].slice(0, 100, 110).eq(0).all().item<bool>() || i > 2) << "not in a range";
      const double tolerance = type == at::kFloat ? 128 * kEps32 : (i < 2 ? 4 : 16) * kEps16;
      expect_close(actual[i], expected[i], tolerance, "result");
    }
  }
}

TEST(Attention, RefusesRangesThatDoNotFitTheTensors) {
  const AttentionShape shape = make_shape(2, 1, 16);
  const QueryKeyValue inputs = split_qkv(random_tensor({10, shape.qkv_width()}, 14), shape);
  const at::Tensor out = at::empty({10, shape.out_width()});
  const at::Tensor lse = at::empty({10, shape.heads});
  for (const std::vector<int32_t>& boundaries : std::vector<std::vector<int32_t>>{{}, {1, 10}, {0, 7, 5, 10}})
    EXPECT_THROW(document_ranges(boundaries), Error);
  const std::vector<std::vector<AttentionRange>> wrong = {
      {{0, 10, 0, 11, 0}},                  // more keys than there are
      {{0, 11, 0, 10, 0}},                  // more queries
      {{0, 10, 0, 10, 1}},                  // a query after the last key
      {{0, 10, 0, 9, 10, false}},           // the same
      {{0, 10, 0, 10, 0, false}},           // queries that see nothing
      {{5, 5, 5, 5, 0}, {0, 5, 0, 5, 0}},   // descending keys
      {{0, 5, 0, 5, 0}, {5, 5, 4, 6, 0}},   // documents that overlap
      {{0, 4, 0, 10, 0}, {4, 6, 0, 9, 3}},  // two lengths of one document
      {{-1, 11, 0, 11, 0}},
      {{0, 10, 0, 10, -1}}};
  for (const auto& ranges : wrong) EXPECT_THROW(attention_forward(inputs, shape, ranges, out, lse), Error);
  EXPECT_NO_THROW(attention_forward(inputs, shape, document_ranges(std::vector<int32_t>{0, 10}), out, lse));
  EXPECT_THROW(
      attention_forward(inputs, make_shape(3, 2, 16), document_ranges(std::vector<int32_t>{0, 10}), out, lse),
      Error);
}

TEST(AttentionCached, RefusesMoreTokensThanTheCacheHolds) {
  const AttentionShape shape = make_shape(2, 1, 16);
  const at::Tensor q = random_tensor({1, 2, shape.out_width()}, 15);
  const at::Tensor cache = random_tensor({1, 8, 1, 16}, 16);
  const at::Tensor out = at::empty_like(q);
  EXPECT_THROW(attention_cached(q, cache, cache, std::vector<int64_t>{7}, shape, out), Error);
  EXPECT_NO_THROW(attention_cached(q, cache, cache, std::vector<int64_t>{6}, shape, out));
}

}  // namespace
}  // namespace stepforge::testing
