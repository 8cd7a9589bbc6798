// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/catalog/decoder_spec.h"
#include "tests/catalog/small_model.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

/// Of the layer, for 16 tokens of a rank in fp32.
BlockCost cost_of(const ContextParallel& context) {
  const ModelSpec spec = model_spec(small_model("llama", 8, 2), 0, {}, context);
  return block_cost(spec.blocks.at(1), {16, 16 * context.degree, DType::f32, 2, context.degree});
}

TEST(ContextCosts, CountWhatEachMethodExchanges) {
  constexpr auto kContext = static_cast<size_t>(BlockAxis::context);
  constexpr auto kHeads = static_cast<size_t>(BlockAxis::heads);
  constexpr int64_t kKeys = int64_t{16} * 4 * 2 * 2 * 10;  // of a rank's tokens, in bytes
  constexpr int64_t kQueries = int64_t{16} * 4 * 8 * 10;
  EXPECT_EQ(cost_of({}).forward_exchange.at(kContext), 0);
  EXPECT_EQ(cost_of({4, ContextMethod::allgather}).forward_exchange.at(kContext), 4 * kKeys);
  EXPECT_EQ(cost_of({4, ContextMethod::allgather}).backward_exchange.at(kContext), 8 * kKeys);
  EXPECT_EQ(cost_of({4, ContextMethod::ring}).forward_exchange.at(kContext), 3 * kKeys);
  EXPECT_EQ(cost_of({4, ContextMethod::ring}).backward_exchange.at(kContext), 6 * kKeys);
  // Each of two key-value heads goes to two ranks.
  EXPECT_EQ(cost_of({4, ContextMethod::ulysses}).forward_exchange.at(kHeads), 2 * kQueries + 2 * kKeys);
  EXPECT_EQ(cost_of({4, ContextMethod::ulysses}).backward_exchange.at(kHeads), 2 * kQueries + 2 * kKeys);
  EXPECT_EQ(cost_of({4, ContextMethod::ulysses}).forward_exchange.at(kContext), 0);
  // Two heads of keys for two neighbours, then around a ring of two.
  const BlockCost hybrid = cost_of({4, ContextMethod::hybrid, 2});
  EXPECT_EQ(hybrid.forward_exchange.at(kHeads), 2 * kQueries + kKeys);
  EXPECT_EQ(hybrid.forward_exchange.at(kContext), kKeys);
  EXPECT_EQ(hybrid.backward_exchange.at(kContext), 2 * kKeys);
}

TEST(ContextCosts, UlyssesNeedsHeadsForEveryRank) {
  const auto refusal = [](int64_t heads, int64_t kv_heads, int64_t degree, int tensor) {
    return message_of<UsageError>([&] {
      model_spec(small_model("llama", heads, kv_heads), 0, {0, tensor}, {degree, ContextMethod::ulysses});
    });
  };
  EXPECT_NO_THROW(model_spec(small_model("llama", 12, 4), 0, {0, 2}, {2, ContextMethod::ulysses}));
  EXPECT_NO_THROW(model_spec(small_model("llama", 12, 4), 0, {0, 2}, {6, ContextMethod::ulysses}));
  EXPECT_NO_THROW(model_spec(small_model("llama", 12, 4), 0, {}, {5, ContextMethod::ring}));
  EXPECT_CONTAINS(refusal(12, 4, 5, 1), "context_parallel_degree = 5");
  EXPECT_CONTAINS(refusal(12, 4, 4, 2), "a rank has 6 heads and 2 key-value heads");
  EXPECT_CONTAINS(refusal(12, 4, 6, 1), "use another degree, or the method \"allgather\"");
}

}  // namespace
}  // namespace stepforge::testing
