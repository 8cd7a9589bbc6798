// SPDX-License-Identifier: Apache-2.0
// One small model on several ranks, which are threads or processes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/checkpoint/checkpoint_ranks.h"
#include "tests/checkpoint/fixture.h"
#include "tests/support/rank_groups.h"
#include "tests/support/rank_threads.h"

namespace stepforge::testing {

/// How a model is sharded: over ranks / replicas ranks, `replicas` times.
struct Layout {
  int ranks = 1;
  int replicas = 1;
  Partition partition = {};

  std::string name() const {
    return format("{} ranks, {} replicas, {}", ranks, replicas, partition_text(partition));
  }
};

/// Rows whose ends are not multiples of 1,024 elements, a tensor of several such chunks, and units with fewer
/// chunks than ranks.
inline ModelConfig odd_config() {
  ModelConfig config = small_config("qwen3");
  config.dim = 18;
  config.ffn_dim = 25;
  config.vocab_size = 183;
  return config;
}

/// One rank's part of a model, and the ranks that save it.
struct RankModel {
  RankModel(World& world, const Layout& layout, uint64_t seed)
      : model(seed, odd_config(), rank_groups(world, layout.replicas), layout.partition),
        ranks(world.group("checkpoint", all_ranks(world.size())), 60) {}

  StagedCheckpoint stage() const { return model.stage(); }

  SmallModel model;
  CheckpointRanks ranks;
};

using LayoutBody = std::function<void(RankModel&)>;

/// Runs `body` on each rank of a layout, with a model of `seed`. Returns the error message of each rank, or
/// "".
inline std::vector<std::string> failures_on(const Layout& layout, uint64_t seed, const LayoutBody& body,
                                            const RankRunner& runner = as_threads()) {
  const auto on_rank = [&](World& world) -> std::string {
    RankModel rank(world, layout, seed);
    body(rank);
    return "";
  };
  return runner.run(layout.ranks, on_rank);
}

inline void run_on(const Layout& layout, uint64_t seed, const LayoutBody& body) {
  for (const std::string& failure : failures_on(layout, seed, body)) EXPECT_EQ(failure, "") << layout.name();
}

}  // namespace stepforge::testing
