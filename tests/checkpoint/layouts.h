// SPDX-License-Identifier: Apache-2.0
// One small model on several ranks, which are threads or processes.
#pragma once

#include <algorithm>
#include <filesystem>
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

/// How a model is sharded: over ranks / replicas ranks, `replicas` times, or the stages of a pipeline so over
/// equally many ranks.
struct Layout {
  int ranks = 1;
  int replicas = 1;
  Partition partition = {};
  std::vector<int> rank_of_stage = {};  ///< of a pipeline, by stage
  bool tied = false;
  int tensor = 1;  ///< degree of tensor parallelism

  ParallelDims dims() const {
    const int pipeline = rank_of_stage.empty() ? 1 : std::ranges::max(rank_of_stage) + 1;
    return {.dp_replicate = replicas, .tp = tensor, .pp = pipeline};
  }
  std::string name() const {
    std::string text = format("{} ranks, {} replicas, {}", ranks, replicas, partition_text(partition));
    for (const int rank : rank_of_stage) text += format(" stage on {}", rank);
    return text + format(", tp {}", tensor) + (tied ? ", tied" : "");
  }
};

/// Rows whose ends are not multiples of 1,024 elements, a tensor of several such chunks, and units with fewer
/// chunks than ranks.
inline ModelConfig odd_config(bool tied = false) {
  ModelConfig config = small_config("qwen3", tied);
  config.dim = 18;
  config.ffn_dim = 25;
  config.vocab_size = 183;
  return config;
}

/// One rank's part of a model, and the ranks that save it.
struct RankModel {
  RankModel(World& world, const Layout& layout, uint64_t seed)
      : model(seed, odd_config(layout.tied), rank_groups(world, layout.dims()), layout.partition,
              layout.rank_of_stage),
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

/// Saves `dir`/step-N of the model of seed N.
inline void save_step(const std::filesystem::path& dir, const Layout& layout, uint64_t seed) {
  run_on(layout, seed, [&](RankModel& rank) {
    write_checkpoint(dir, static_cast<int64_t>(seed), rank.stage(), rank.ranks);
  });
}

}  // namespace stepforge::testing
