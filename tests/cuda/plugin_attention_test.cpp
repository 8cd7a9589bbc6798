// SPDX-License-Identifier: Apache-2.0
// Attention by flash, with a stand-in for libtorch's kernels (flash_on_cpu.h): what is asked of them, and what becomes of it.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "stepforge/base/random.h"
#include "stepforge/cuda/plugin/kernels.h"
#include "stepforge/cuda/plugin/kernels_attention.h"
#include "stepforge/cuda/plugin/launch.h"
#include "tests/cuda/flash_on_cpu.h"
#include "tests/kernels/compare.h"

namespace stepforge::cuda_plugin {

int compute_capability(const at::Tensor& /*tensor*/) {
  return 90;
}

}  // namespace stepforge::cuda_plugin

namespace stepforge::testing {
namespace {

using cuda_plugin::flash_passes;
using cuda_plugin::FlashPass;
using cuda_plugin::Rows;
using Ranges = std::vector<AttentionRange>;

constexpr double kUntouched = 7.5;  // what outputs hold before a call

AttentionShape flash_shape(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t window = 0) {
  return {.heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .scale = 1.0 / std::sqrt(static_cast<double>(head_dim)),
          .window = window};
}

/// Ranges and the numbers of rows that hold them.
struct Layout {
  Ranges ranges;
  int64_t queries = 0;
  int64_t keys = 0;
};

/// Numbers from 0 to n - 1 in turn.
class Dice {
 public:
  explicit Dice(uint64_t seed) : seed_(seed) {}
  int64_t below(int64_t n) {
    return static_cast<int64_t>(philox(seed_, count_++)[0] % static_cast<uint32_t>(n));
  }

 private:
  uint64_t seed_;
  uint64_t count_ = 0;
};

/// Documents whose queries are all there, adjacent or, with `gaps`, with some rows between them.
Layout whole_documents(uint64_t seed, bool gaps) {
  Dice dice(seed);
  Layout layout;
  const int64_t documents = 1 + dice.below(5);
  for (int64_t i = 0; i < documents; ++i) {
    const int64_t length = 1 + dice.below(20);
    if (gaps) {
      layout.queries += dice.below(3);
      layout.keys += dice.below(3);
    }
    layout.ranges.push_back({layout.queries, length, layout.keys, length, 0});
    layout.queries += length;
    layout.keys += length;
  }
  return layout;
}

/// As with context parallelism: one or two pieces of the queries of each document, or none, and all of its keys.
Layout pieces_of_documents(uint64_t seed) {
  Dice dice(seed);
  Layout layout;
  const int64_t documents = 1 + dice.below(4);
  for (int64_t i = 0; i < documents; ++i) {
    const int64_t length = 4 + dice.below(20);
    const int64_t pieces = dice.below(3);
    int64_t past = dice.below(length / 3);
    if (pieces == 0) layout.ranges.push_back({0, 0, layout.keys, length, 0});
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const int64_t queries = 1 + dice.below(length / 4);
      layout.ranges.push_back({layout.queries, queries, layout.keys, length, past});
      layout.queries += queries;
      past = std::min(past + queries + dice.below(4), length - length / 4);
    }
    layout.keys += length;
  }
  layout.queries += 1;  // and a row that is in no range
  return layout;
}

/// As in a ring: queries that all see the first keys of their document. Some ranges may share keys.
Layout first_keys(uint64_t seed) {
  Layout layout = pieces_of_documents(seed);
  for (AttentionRange& range : layout.ranges) {
    range.causal = false;
    range.past = std::min(range.past + 1, range.keys);
  }
  return layout;
}

std::vector<Layout> random_layouts(bool windowed) {
  std::vector<Layout> layouts;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    layouts.push_back(whole_documents(seed, /*gaps=*/false));
    layouts.push_back(whole_documents(seed, /*gaps=*/true));
    layouts.push_back(pieces_of_documents(seed));
    if (!windowed) layouts.push_back(first_keys(seed));
  }
  return layouts;
}

/// The tensors of a forward and a backward pass; q, k and v and their gradients are views of packed rows.
struct Passes {
  Passes(const Layout& layout, const AttentionShape& shape, at::ScalarType type, int64_t shift = 0)
      : q_rows(shifted(random_tensor({layout.queries, shape.qkv_width()}, 1).to(type), shift)),
        kv_rows(shifted(random_tensor({layout.keys, shape.qkv_width()}, 2).to(type), shift)),
        inputs{split_qkv(q_rows, shape).q, split_qkv(kv_rows, shape).k, split_qkv(kv_rows, shape).v},
        grad_out(random_tensor({layout.queries, shape.out_width()}, 3).to(type)),
        out(at::full({layout.queries, shape.out_width()}, kUntouched, type)),
        lse(at::full({layout.queries, shape.heads}, kUntouched,
                     type == at::kDouble ? at::kDouble : at::kFloat)),
        gradients{at::full({layout.queries, shape.q_width()}, kUntouched, type),
                  at::full({layout.keys, shape.k_width()}, kUntouched, type),
                  at::full({layout.keys, shape.v_width()}, kUntouched, type)} {}

  /// A copy that begins inside its storage.
  static at::Tensor shifted(const at::Tensor& rows, int64_t shift) {
    const at::Tensor flat = at::empty({rows.numel() + shift}, rows.options());
    const at::Tensor copy = flat.slice(0, shift).view(rows.sizes());
    copy.copy_(rows);
    return copy;
  }
  std::vector<at::Tensor> results() const { return {out, lse, gradients.q, gradients.k, gradients.v}; }

  at::Tensor q_rows;
  at::Tensor kv_rows;
  QueryKeyValue inputs;
  at::Tensor grad_out;
  at::Tensor out;
  at::Tensor lse;
  QueryKeyValue gradients;
};

/// What the rows of the plug-in leave.
std::vector<at::Tensor> by_rows(const Layout& layout, const AttentionShape& shape, at::ScalarType type,
                                int64_t shift = 0, const at::Tensor& sinks = {}) {
  const Passes p(layout, shape, type, shift);
  cuda_plugin::attention_forward(p.inputs, shape, layout.ranges, p.out, p.lse, sinks);
  cuda_plugin::attention_backward(p.grad_out, p.inputs, p.out, p.lse, shape, layout.ranges, p.gradients);
  return p.results();
}

std::vector<at::Tensor> by_reference(const Layout& layout, const AttentionShape& shape, at::ScalarType type,
                                     const at::Tensor& sinks = {}) {
  const Passes p(layout, shape, type);
  reference::attention_forward(p.inputs, shape, layout.ranges, p.out, p.lse, sinks);
  reference::attention_backward(p.grad_out, p.inputs, p.out, p.lse, shape, layout.ranges, p.gradients);
  return p.results();
}

int flash_calls_of(const auto& run) {
  const FlashCalls before = flash_calls();
  run();
  return flash_calls().forward - before.forward + flash_calls().backward - before.backward;
}

TEST(FlashPasses, AdjacentDocumentsAreOneCallWithoutGaps) {
  const std::vector<FlashPass> passes =
      flash_passes(document_ranges(std::vector<int32_t>{0, 5, 5, 6, 14}), 0);
  ASSERT_EQ(passes.size(), 1U);
  EXPECT_TRUE(passes[0].causal);
  EXPECT_EQ(passes[0].query_bounds, (std::vector<int32_t>{0, 5, 6, 14}));
  EXPECT_EQ(passes[0].key_bounds, passes[0].query_bounds);
  EXPECT_EQ(passes[0].longest_queries, 8);
  EXPECT_EQ(passes[0].longest_keys, 8);
  EXPECT_EQ(passes[0].queries, (std::vector<Rows>{{0, 14}}));
  EXPECT_EQ(passes[0].keys, passes[0].queries);
}

/// The second range ends before its document does, and has rows of neither kind before it.
TEST(FlashPasses, KeysEndWithTheLastQueryAndGapsAreDocumentsOfTheirOwn) {
  const Ranges ranges = {{3, 4, 10, 4, 0}, {9, 2, 14, 12, 5}, {0, 0, 30, 5, 0}, {11, 1, 40, 3, 2}};
  const std::vector<FlashPass> passes = flash_passes(ranges, 0);
  ASSERT_EQ(passes.size(), 1U);
  EXPECT_EQ(passes[0].query_bounds, (std::vector<int32_t>{0, 4, 6, 8, 8, 9}));
  EXPECT_EQ(passes[0].key_bounds, (std::vector<int32_t>{0, 4, 4, 11, 30, 33}));
  EXPECT_EQ(passes[0].queries, (std::vector<Rows>{{3, 4}, {9, 3}}));
  EXPECT_EQ(passes[0].keys, (std::vector<Rows>{{10, 11}, {40, 3}}));
  EXPECT_EQ(passes[0].longest_keys, 19);
  EXPECT_EQ(cuda_plugin::document_keys(ranges), (std::vector<Rows>{{10, 16}, {30, 5}, {40, 3}}));
}

TEST(FlashPasses, KeysBeforeTheWindowAreLeftOut) {
  const Ranges ranges = {{0, 2, 0, 20, 10}, {2, 3, 0, 20, 16}};
  const std::vector<FlashPass> passes = flash_passes(ranges, 4);
  ASSERT_EQ(passes.size(), 1U) << "with a window the two ranges share no keys";
  EXPECT_EQ(passes[0].keys, (std::vector<Rows>{{7, 5}, {13, 6}}));
  EXPECT_EQ(flash_passes(ranges, 5).size(), 1U);
  EXPECT_EQ(flash_passes(ranges, 6).size(), 2U);
  EXPECT_EQ(flash_passes(ranges, 0).size(), 2U);
}

TEST(FlashPasses, RangesThatShareKeysOrDifferInKindAreSeveralCalls) {
  EXPECT_EQ(flash_passes(Ranges{{0, 3, 0, 9, 0}, {3, 3, 0, 9, 3}, {6, 3, 0, 9, 6}}, 0).size(), 3U);
  EXPECT_EQ(flash_passes(Ranges{{0, 3, 0, 9, 2, false}, {3, 3, 9, 9, 3}, {6, 2, 18, 4, 3, false}}, 0).size(),
            2U);
  EXPECT_EQ(cuda_plugin::document_keys(Ranges{{0, 3, 0, 9, 0}, {3, 3, 0, 9, 3}, {6, 1, 9, 2, 0}}),
            (std::vector<Rows>{{0, 11}}));
  EXPECT_EQ(flash_passes(Ranges{{5, 3, 0, 9, 0}, {0, 3, 9, 9, 3}}, 0).size(), 2U) << "queries descend";
  EXPECT_TRUE(flash_passes(Ranges{{0, 0, 0, 9, 0}}, 0).empty());
  EXPECT_TRUE(flash_passes(Ranges{}, 0).empty());
}

/// Exact but for the order of sums: fp64, which the kernels of a GPU do not take.
TEST(FlashAttention, AgreesWithTheReferenceForAllKindsOfRanges) {
  for (const AttentionShape& shape : {flash_shape(4, 2, 8), flash_shape(3, 3, 8), flash_shape(2, 1, 16, 1),
                                      flash_shape(4, 2, 8, 3), flash_shape(4, 1, 8, 9)}) {
    for (const Layout& layout : random_layouts(shape.window > 0)) {
      const Passes actual(layout, shape, at::kDouble);
      cuda_plugin::flash_attention_forward(actual.inputs, shape, layout.ranges, actual.out, actual.lse);
      cuda_plugin::flash_attention_backward(actual.grad_out, actual.inputs, actual.out, actual.lse, shape,
                                            layout.ranges, actual.gradients);
      const std::vector<at::Tensor> expected = by_reference(layout, shape, at::kDouble);
      for (size_t i = 0; i < expected.size(); ++i) {
        SCOPED_TRACE(i);
        expect_close(actual.results()[i], expected[i], 1e-13, "result");
      }
    }
  }
}

/// Backward has the same results of the forward pass, whose rounding it sees.
TEST(FlashAttention, RowsOfTheTableCallItForBf16AndRoundOnce) {
  for (const AttentionShape& shape : {flash_shape(4, 2, 16), flash_shape(4, 2, 8, 5)}) {
    for (const Layout& layout : random_layouts(shape.window > 0)) {
      const auto passes = static_cast<int>(flash_passes(layout.ranges, shape.window).size());
      const Passes actual(layout, shape, at::kBFloat16);
      const Passes expected(layout, shape, at::kBFloat16);
      EXPECT_EQ(flash_calls_of([&] {
                  cuda_plugin::attention_forward(actual.inputs, shape, layout.ranges, actual.out, actual.lse,
                                                 {});
                }),
                passes);
      reference::attention_forward(expected.inputs, shape, layout.ranges, expected.out, expected.lse, {});
      EXPECT_EQ(flash_calls_of([&] {
                  cuda_plugin::attention_backward(actual.grad_out, actual.inputs, expected.out, expected.lse,
                                                  shape, layout.ranges, actual.gradients);
                }),
                passes);
      reference::attention_backward(expected.grad_out, expected.inputs, expected.out, expected.lse, shape,
                                    layout.ranges, expected.gradients);
      for (size_t i = 0; i < expected.results().size(); ++i) {
        SCOPED_TRACE(i);
        // Several calls round their sums to bf16 before these are added, and some nearly cancel.
        const bool of_keys = i > 2 && passes > 1;
        expect_close(actual.results()[i], expected.results()[i],
                     i == 1 ? 64 * kEps32 : (of_keys ? 8 : 1) * kEps16, "result");
      }
    }
  }
}

/// Of the rows that no range has, and of keys that no query sees.
TEST(FlashAttention, RowsInNoRangeStayAndUnseenKeysHaveNoGradient) {
  const AttentionShape shape = flash_shape(2, 2, 8);
  const Layout layout{
      .ranges = {{1, 3, 2, 6, 1}, {0, 0, 9, 4, 0}, {6, 2, 14, 4, 0}}, .queries = 9, .keys = 20};
  const std::vector<at::Tensor> r = by_rows(layout, shape, at::kBFloat16);
  const auto all = [&](size_t i, int64_t begin, int64_t end, double value) {
    return r[i].slice(0, begin, end).eq(value).all().item<bool>();
  };
  for (const size_t of_queries : {0, 1, 2}) {
    SCOPED_TRACE(of_queries);
    for (const Rows& rows : std::vector<Rows>{{0, 1}, {4, 2}, {8, 1}})
      EXPECT_TRUE(all(of_queries, rows.begin, rows.end(), kUntouched));
    EXPECT_FALSE(all(of_queries, 1, 4, kUntouched));
  }
  for (const size_t of_keys : {3, 4}) {
    SCOPED_TRACE(of_keys);
    for (const Rows& rows : std::vector<Rows>{{0, 2}, {8, 1}, {13, 1}, {18, 2}})
      EXPECT_TRUE(all(of_keys, rows.begin, rows.end(), kUntouched));
    for (const Rows& rows : std::vector<Rows>{{6, 2}, {9, 4}, {16, 2}})
      EXPECT_TRUE(all(of_keys, rows.begin, rows.end(), 0.0));
    EXPECT_FALSE(r[of_keys].isnan().any().item<bool>());
  }
  const Layout unseen{.ranges = {{0, 0, 0, 4, 0}}, .queries = 1, .keys = 4};
  EXPECT_TRUE(by_rows(unseen, shape, at::kBFloat16)[3].eq(0).all().item<bool>());
}

TEST(FlashAttention, TakesViewsOfPackedRows) {
  const AttentionShape shape = flash_shape(4, 2, 8);
  const Layout layout{.ranges = {{2, 5, 3, 5, 0}}, .queries = 7, .keys = 8};
  const Passes p(layout, shape, at::kBFloat16);
  cuda_plugin::attention_forward(p.inputs, shape, layout.ranges, p.out, p.lse, {});
  const FlashCalls& calls = flash_calls();
  const int64_t width = shape.qkv_width();
  EXPECT_EQ(calls.q.data_ptr<at::BFloat16>(), p.q_rows.data_ptr<at::BFloat16>() + 2 * width);
  EXPECT_EQ(calls.k.data_ptr<at::BFloat16>(), p.kv_rows.data_ptr<at::BFloat16>() + 3 * width + 32);
  EXPECT_EQ(calls.v.data_ptr<at::BFloat16>(), p.kv_rows.data_ptr<at::BFloat16>() + 3 * width + 48);
  EXPECT_EQ(calls.q.sizes(), (at::IntArrayRef{5, 4, 8}));
  EXPECT_EQ(calls.k.sizes(), (at::IntArrayRef{5, 2, 8}));
  EXPECT_EQ(calls.q.stride(0), width);
  EXPECT_EQ(calls.documents, 1);
}

/// With the log-sum-exp of a forward pass with sinks, backward needs to know nothing else of them.
TEST(FlashAttention, BackwardOfAForwardPassWithSinksIsByFlash) {
  const AttentionShape shape = flash_shape(4, 2, 8);
  const at::Tensor sinks = random_tensor({4}, 9);
  const Layout layout = whole_documents(3, false);
  std::vector<at::Tensor> actual;
  EXPECT_EQ(flash_calls_of([&] { actual = by_rows(layout, shape, at::kBFloat16, 0, sinks); }), 1);
  const std::vector<at::Tensor> expected = by_reference(layout, shape, at::kBFloat16, sinks);
  EXPECT_TRUE(at::equal(actual[0], expected[0]));
  for (size_t i = 2; i < expected.size(); ++i) expect_close(actual[i], expected[i], kEps16, "gradient");
}

TEST(FlashAttention, WhatItDoesNotTakeIsTheReferences) {
  const Layout layout = whole_documents(4, true);
  const auto expect_reference = [&](const AttentionShape& shape, at::ScalarType type, int64_t shift) {
    std::vector<at::Tensor> actual;
    EXPECT_EQ(flash_calls_of([&] { actual = by_rows(layout, shape, type, shift); }), 0);
    const std::vector<at::Tensor> expected = by_reference(layout, shape, type);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(actual[i], expected[i])) << i;
  };
  AttentionShape capped = flash_shape(2, 1, 8);
  capped.cap = 2.0;
  AttentionShape wide_values = flash_shape(2, 1, 8);
  wide_values.value_dim = 16;
  expect_reference(flash_shape(2, 1, 8), at::kFloat, 0);
  expect_reference(flash_shape(2, 1, 8), at::kBFloat16, 3);
  expect_reference(flash_shape(2, 1, 12), at::kBFloat16, 0);
  expect_reference(capped, at::kBFloat16, 0);
  expect_reference(wide_values, at::kBFloat16, 0);
  const AttentionShape shape = flash_shape(2, 1, 8);
  const Passes p(layout, shape, at::kBFloat16);
  const auto backward = [&](const at::Tensor& grad_out, const at::Tensor& out) {
    cuda_plugin::attention_backward(grad_out, p.inputs, out, p.lse, shape, layout.ranges, p.gradients);
  };
  EXPECT_EQ(flash_calls_of([&] { backward(p.grad_out, p.out); }), 1);
  EXPECT_EQ(flash_calls_of([&] { backward(Passes::shifted(p.grad_out, 1), p.out); }), 0);
  EXPECT_EQ(flash_calls_of([&] { backward(p.grad_out, Passes::shifted(p.out, 1)); }), 0);
}

TEST(FlashAttention, SaysWhyNot) {
  const auto why_not = [](const AttentionShape& shape, at::ScalarType type = at::kBFloat16,
                          int capability = 90, int64_t shift = 0, size_t ranges = 2,
                          const at::Tensor& sinks = {}) {
    const Passes p({.ranges = {}, .queries = 4, .keys = 4}, shape, type, shift);
    return std::string(
        cuda_plugin::why_not_flash(p.inputs, shape, Ranges(ranges, {0, 2, 0, 2, 0}), sinks, capability));
  };
  const AttentionShape shape = flash_shape(4, 2, 64);
  AttentionShape capped = shape;
  capped.cap = 30.0;
  AttentionShape wide_values = shape;
  wide_values.value_dim = 128;
  AttentionShape same_values = flash_shape(1, 1, 256, 100);
  same_values.value_dim = 256;
  EXPECT_EQ(why_not(shape), "");
  EXPECT_EQ(why_not(shape, at::kBFloat16, 80), "");
  EXPECT_EQ(why_not(same_values, at::kBFloat16, 120, 8), "");
  EXPECT_EQ(why_not(shape, at::kBFloat16, 75), "the GPU is older than compute capability 8.0");
  EXPECT_EQ(why_not(shape, at::kFloat), "elements are not bf16");
  EXPECT_EQ(why_not(shape, at::kHalf), "elements are not bf16");
  EXPECT_EQ(why_not(capped), "scores are capped");
  EXPECT_EQ(why_not(shape, at::kBFloat16, 90, 0, 2, random_tensor({4}, 1)), "there are sinks");
  EXPECT_EQ(why_not(wide_values), "values are not as wide as keys");
  EXPECT_EQ(why_not(flash_shape(2, 2, 20)), "the size of heads is not a multiple of 8");
  EXPECT_EQ(why_not(flash_shape(1, 1, 264)), "heads have more than 256 elements");
  EXPECT_EQ(why_not(shape, at::kBFloat16, 90, 4), "rows are not aligned to 16 bytes");
  EXPECT_EQ(why_not(shape, at::kBFloat16, 90, 0, 21845), "");
  EXPECT_EQ(why_not(shape, at::kBFloat16, 90, 0, 21846), "there are too many ranges");
}

}  // namespace
}  // namespace stepforge::testing
