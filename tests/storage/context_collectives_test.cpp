// SPDX-License-Identifier: Apache-2.0
// Attention of parts of rows, combined over ranks, against attention of whole rows.
#include "stepforge/storage/context_collectives.h"

#include <ATen/ops/empty_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "stepforge/data/context_part.h"
#include "tests/kernels/compare.h"
#include "tests/nn/one_call.h"
#include "tests/support/rank_threads.h"

namespace stepforge::testing {
namespace {

using ContextBody = std::function<void(const ContextExchange& exchange, int64_t rank)>;

/// Runs `body` as each of `degree` ranks.
void on_context_ranks(const ContextParallel& parallel, const ContextBody& body) {
  const auto degree = static_cast<int>(parallel.degree);
  const auto run = [&](World& world) -> std::string {
    const RankId id{world.rank(), world.size()};
    const RankLayout layout =
        rank_layout({}, {.dims = {.dp_shard = 1, .cp = degree, .cp_heads = parallel.heads()}}, id);
    std::vector<GroupLane> lanes;
    if (layout.heads_group >= 0) lanes.push_back({layout.heads_group, Lane::compute});
    if (layout.keys_group >= 0) lanes.push_back({layout.keys_group, Lane::compute});
    if (parallel.has_ring()) lanes.push_back({layout.keys_group, Lane::peer});
    const GroupCommunicators groups(world, layout, lanes);
    body(context_exchange(groups, parallel), id.rank);
    return "";
  };
  for (const std::string& result : as_threads().run(degree, run, {60, 60})) EXPECT_EQ(result, "");
}

/// Three rows of 48 tokens; documents of one token, of several rows' chunks and of a whole row.
Batch rows_with_documents() {
  Batch batch = empty_batch(48, 3);
  Row row;
  row.tokens.assign(49, 1);
  row.document_starts = {1, 7, 8, 21, 45};
  append_row(row, 0, batch);
  row.document_starts = {};
  append_row(row, 1, batch);
  row.document_starts = {24, 47};
  append_row(row, 2, batch);
  return batch;
}

/// The rows of `whole` that a rank has.
at::Tensor part_rows(const at::Tensor& whole, const Batch& batch) {
  std::vector<at::Tensor> rows;
  for (int64_t row = 0; row < batch.rows; ++row)
    for (const TokenRange& range : token_ranges(batch.part, batch.row_length()))
      rows.push_back(whole.narrow(0, row * batch.row_length() + range.begin, range.size));
  return at::cat(rows).contiguous();
}

struct Attended {
  at::Tensor out;
  at::Tensor gradient;
};

Attended attended(at::Tensor qkv, const at::Tensor& grad_out,
                  const std::function<at::Tensor(const at::Tensor&)>& attention) {
  qkv = qkv.clone().set_requires_grad(true);
  at::Tensor out = attention(qkv);
  torch::autograd::backward({out}, {grad_out});
  return {out.detach(), qkv.grad()};
}

struct MethodCase {
  ContextMethod method;
  int64_t heads;
  int64_t kv_heads;
  std::vector<int> degrees;
  int64_t ulysses_degree = 1;
  int64_t window = 0;
};

TEST(ContextExchange, IsEmptyForASingleRank) {
  EXPECT_FALSE(context_exchange(single_rank_groups(), {}).several());
}

// Finds what went wrong in diffusers#14265 and TransformerEngine#1557 (keys of the first step in backward).
TEST(ContextExchange, AttentionOfPartsIsThatOfWholeRows) {
  const std::vector<MethodCase> cases = {
      {ContextMethod::allgather, 6, 2, {2, 3, 4, 8}},  {ContextMethod::ring, 6, 2, {2, 3, 4, 8}},
      {ContextMethod::ulysses, 12, 12, {2, 3, 4, 6}},  {ContextMethod::ulysses, 8, 2, {2, 4, 8}},
      {ContextMethod::ulysses, 6, 1, {2, 3, 6}},       {ContextMethod::hybrid, 6, 2, {4, 6, 8}, 2},
      {ContextMethod::hybrid, 6, 1, {6}, 3},           {ContextMethod::hybrid, 8, 4, {8}, 4},
      {ContextMethod::allgather, 6, 2, {3, 4}, 1, 10}, {ContextMethod::ulysses, 8, 2, {4}, 1, 10}};
  const Batch rows = rows_with_documents();
  const BatchTensors whole(rows);
  for (const MethodCase& tried : cases) {
    const AttentionShape shape{tried.heads, tried.kv_heads, 8, 0.3, tried.window};
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor qkv = random_tensor({whole.token_count(), shape.qkv_width()}, 1).to(type);
      const at::Tensor grad_out = random_tensor({whole.token_count(), shape.out_width()}, 2).to(type);
      const Attended expected =
          attended(qkv, grad_out, [&](const at::Tensor& x) { return attend_by_calls(x, shape, whole); });
      for (const int degree : tried.degrees) {
        for (const bool head_tail : {true, false}) {
          const ContextParallel parallel{degree, tried.method, tried.ulysses_degree};
          on_context_ranks(parallel, [&](const ContextExchange& exchange, int64_t rank) {
            const BatchTensors own(take_part(rows, {rank, degree, head_tail, parallel.heads()}));
            const Attended actual =
                attended(part_rows(qkv, own.host), part_rows(grad_out, own.host),
                         [&](const at::Tensor& x) { return attend_by_calls(x, shape, own, exchange); });
            const at::Tensor expected_out = part_rows(expected.out, own.host);
            if (parallel.has_ring()) {  // partial results are merged
              expect_close(actual.out, expected_out.to(at::kDouble),
                           type == at::kFloat ? 64 * kEps32 : 2 * kEps16, "out");
            } else {
              EXPECT_TRUE(at::equal(actual.out, expected_out));
            }
            expect_close(actual.gradient, part_rows(expected.gradient, own.host).to(at::kDouble),
                         type == at::kFloat ? 64 * kEps32 : 8 * kEps16, "gradient");
          });
        }
      }
    }
  }
}

}  // namespace
}  // namespace stepforge::testing
