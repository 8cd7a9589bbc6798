// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/gradient_norm.h"

#include <cmath>
#include <limits>
#include <map>

#include <gtest/gtest.h>

#include "tests/nn/tiny_model.h"
#include "tests/support/rank_groups.h"
#include "tests/support/rank_threads.h"

namespace stepforge::testing {
namespace {

const std::vector<NormType> kTypes = {NormType::l1, NormType::l2, NormType::l3, NormType::inf};

std::vector<UnitSpec> units() {
  const auto matrix = [](const std::string& name, int64_t rows, int64_t columns) {
    return ParameterSpec{name, {rows, columns}, {{"weight", name, rows, {}}}, ParameterTag::matrix};
  };
  return {{"small", {matrix("a", 3, 5)}, true},
          {"frozen", {matrix("b", 40, 50)}, false},
          {"large", {matrix("c", 70, 70), matrix("d", 17, 3)}, true}};
}

/// The same gradients on any number of ranks; padding stays zero.
void fill_gradients(ModelStore& store) {
  for (size_t u = 0; u < store.size(); ++u) {
    if (!store.unit(u).trained()) continue;
    const FlatLayout layout = flat_layout(store.unit(u).spec());
    const at::Tensor whole = at::zeros({layout.size});
    for (size_t i = 0; i < layout.offsets.size(); ++i) {
      const int64_t elements = store.unit(u).spec().parameters[i].elements();
      whole.narrow(0, layout.offsets[i], elements).copy_(random_tensor({elements}, 10 * u + i));
    }
    const int64_t begin = store.unit(u).shard_size() * store.unit(u).shard();
    const int64_t held = std::max<int64_t>(0, std::min(store.unit(u).shard_size(), layout.size - begin));
    if (held > 0) store.unit(u).gradient().narrow(0, 0, held).copy_(whole.narrow(0, begin, held));
  }
}

double norm_of(const ModelStore& store, NormType type, NormExchange exchange, Communicator* shards) {
  const at::Tensor terms = scalar(7);
  gradient_norm_terms(store, type, exchange, shards, terms);
  norm_of_terms(type, terms, terms);
  return terms.item<double>();
}

/// The norms of all types that each of `shards` x `replicas` ranks finds.
std::vector<std::vector<double>> norms(int shards, int replicas, NormExchange exchange) {
  std::vector<std::vector<double>> found(static_cast<size_t>(shards * replicas));
  const std::vector<UnitSpec> specs = units();
  const auto faults = run_threads(shards * replicas, [&](World& world) {
    const auto groups = rank_groups(world, replicas);
    const ParallelPlan plan{.dims = groups->layout().dims};
    ModelStore store(specs, rank_layout(specs, plan, groups->layout().id), {}, groups);
    fill_gradients(store);
    Communicator* const shard_ranks = groups->at(groups->layout().find(kShardGroup), Lane::compute);
    for (const NormType type : kTypes)
      found[static_cast<size_t>(world.rank())].push_back(norm_of(store, type, exchange, shard_ranks));
    return std::string();
  });
  for (const std::string& fault : faults) EXPECT_EQ(fault, "");
  return found;
}

TEST(GradientNorm, IsTheSameOnEveryRankOfAnyMesh) {
  const auto one = norms(1, 1, NormExchange::ranks)[0];
  for (const auto& [shards, replicas] :
       std::vector<std::pair<int, int>>{{2, 1}, {3, 1}, {8, 1}, {1, 2}, {2, 2}}) {
    const auto found = norms(shards, replicas, NormExchange::ranks);
    for (const auto& of_rank : found) {
      EXPECT_EQ(of_rank, found[0]);
      for (size_t i = 0; i < kTypes.size(); ++i) EXPECT_NEAR(of_rank[i], one[i], 1e-14 * one[i]) << shards;
    }
  }
}

TEST(GradientNorm, JoinedByChunksGivesTheBitsOfOneRank) {
  const auto one = norms(1, 1, NormExchange::ranks)[0];
  for (const int shards : {1, 2, 3, 8}) {
    for (const auto& of_rank : norms(shards, 1, NormExchange::chunks)) EXPECT_EQ(of_rank, one) << shards;
  }
}

TEST(GradientNorm, EqualsTorchsNormOfTheTrainedGradients) {
  const std::vector<UnitSpec> specs = units();
  ModelStore store(specs, rank_layout(specs));
  fill_gradients(store);
  const at::Tensor all = at::cat({store.unit(0).gradient(), store.unit(2).gradient()}).to(at::kDouble);
  const std::vector<double> orders = {1, 2, 3, std::numeric_limits<double>::infinity()};
  for (size_t i = 0; i < kTypes.size(); ++i) {
    const double expected = all.norm(orders[i]).item<double>();
    EXPECT_NEAR(norm_of(store, kTypes[i], NormExchange::ranks, nullptr), expected, 1e-13 * expected);
  }
}

}  // namespace
}  // namespace stepforge::testing
