// SPDX-License-Identifier: Apache-2.0
// Checkpoints and model folders of pipelines: every rank holds other units.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/checkpoint/hf_folder.h"
#include "stepforge/tensorfile/manifest.h"
#include "tests/checkpoint/layouts.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEmbedding = "model.embed_tokens.weight";

/// Four blocks in two or four stages, also two stages on a rank (looped, and as a V); sharded, replicated, and
/// with divided tensors.
std::vector<Layout> pipelines(bool tied) {
  std::vector<Layout> layouts = {
      {1, 1, {}, {}},           {2, 1, {}, {0, 1}},       {4, 1, {}, {0, 1, 2, 3}},
      {2, 1, {}, {0, 1, 0, 1}}, {2, 1, {}, {0, 1, 1, 0}}, {4, 1, {PartitionKind::by_dim, 0}, {0, 1}},
      {4, 2, {}, {0, 1}},       {8, 2, {}, {0, 1, 1, 0}}, {8, 1, {}, {0, 1}, false, 2}};
  for (Layout& layout : layouts) layout.tied = tied;
  return layouts;
}

/// The elements of each tensor in the files of `folder` whose names contain `part`.
std::map<std::string, int64_t> saved_elements(const fs::path& folder, const std::string& part) {
  std::map<std::string, int64_t> elements;
  for (const std::string& name : names_in(folder)) {
    if (fs::path(name).extension() != ".safetensors" || name.find(part) == std::string::npos) continue;
    const SafetensorsFile file(folder / name);
    for (const TensorEntry& tensor : file.tensors()) elements[tensor.name] += tensor.bytes() / 4;
  }
  return elements;
}

TEST(PipelineCheckpoint, AnyPipelineReadsEveryBitOfAnyOther) {
  for (const bool tied : {false, true}) {
    const TempFolder folder;
    const std::vector<Layout> layouts = pipelines(tied);
    for (size_t i = 0; i < layouts.size(); ++i) save_step(folder.path(), layouts[i], i);
    for (const Layout& layout : layouts) {
      run_on(layout, 1000, [&](RankModel& rank) {
        for (uint64_t seed = 0; seed < layouts.size(); ++seed) {
          const auto found = checkpoint_of_step(folder.path(), static_cast<int64_t>(seed), rank.ranks);
          load_checkpoint(found, rank.model.spec, rank.model.store, &rank.model.optimizer);
          const std::string loaded = rank.model.bits();
          rank.model.refill(seed);
          EXPECT_EQ(loaded == rank.model.bits(), true)
              << layouts[seed].name() << " into " << layout.name() << ", rank " << rank.ranks.rank();
          rank.model.refill(1000);
        }
      });
    }
  }
}

TEST(PipelineCheckpoint, EveryElementIsWrittenOnceAlsoOfATiedEmbedding) {
  for (const bool tied : {false, true}) {
    const SmallModel whole(1, odd_config(tied));
    for (const Layout& layout : pipelines(tied)) {
      const TempFolder folder;
      save_step(folder.path(), layout, 1);
      std::map<std::string, int64_t> expected;
      for (const NamedTensor& tensor : named_tensors(whole.spec)) {
        expected[tensor.name] = tensor.elements;
        for (const auto* slot : {"exp_avg", "exp_avg_sq"})
          expected[optimizer_tensor_name(tensor.name, slot)] = tensor.elements;
      }
      EXPECT_EQ(saved_elements(folder / "step-1", ""), expected) << layout.name();
    }
  }
}

TEST(PipelineCheckpoint, ARankWritesWhatItHoldsAndTheFirstStageTheTiedEmbedding) {
  const TempFolder folder;
  save_step(folder.path(), {2, 1, {}, {0, 1}, /*tied=*/true}, 1);
  const auto first = saved_elements(folder / "step-1", "shard-00001");
  const auto second = saved_elements(folder / "step-1", "shard-00002");
  EXPECT_TRUE(first.contains(kEmbedding));
  EXPECT_FALSE(second.contains(kEmbedding));
  EXPECT_TRUE(second.contains("model.norm.weight"));
  EXPECT_FALSE(first.contains("model.norm.weight"));
}

TEST(PipelineCheckpoint, TheExportIsTheSameFromEveryPipelineAndReadByEveryPipeline) {
  for (const bool tied : {false, true}) {
    const TempFolder folder;
    const SmallModel whole(1, odd_config(tied));
    std::vector<std::string> exported;
    const std::vector<Layout> layouts = pipelines(tied);
    for (size_t i = 0; i < layouts.size(); ++i) {
      save_step(folder / format("run-{}", i), layouts[i], 1);
      const fs::path out = folder / format("out-{}", i);
      const FoundCheckpoint found = verify_checkpoint(folder / format("run-{}", i) / "step-1");
      export_hf(out, whole.config, whole.spec, checkpoint_tensors(found), nullptr, {DType::f32, 3000});
      exported.emplace_back();
      for (const std::string& name : names_in(out)) exported.back() += name + read_file(out / name);
      EXPECT_TRUE(exported.back() == exported.front()) << layouts[i].name();
    }
    for (const Layout& layout : layouts) {
      run_on(layout, 2, [&](RankModel& rank) {
        import_hf(folder / "out-0", rank.model.spec, rank.model.store);
        const std::string imported = rank.model.bits(true);
        rank.model.refill(1);
        EXPECT_TRUE(imported == rank.model.bits(true)) << layout.name();
      });
    }
  }
}

TEST(PipelineCheckpoint, ASmallerVocabularyGrowsOnTheRanksThatHoldIt) {
  const TempFolder folder;
  ModelConfig smaller = odd_config();
  smaller.vocab_size -= 5;
  const SmallModel stored(1, smaller);
  write_checkpoint(folder.path(), 1, stored.stage());
  const TensorFolder weights = checkpoint_tensors(verify_checkpoint(folder / "step-1"));
  SmallModel grown(2, odd_config());
  import_weights(weights, grown.spec, grown.store, {.stored_vocabulary = stored.spec.vocab_size});
  write_checkpoint(folder.path(), 2, grown.stage());
  for (const Layout& layout : pipelines(/*tied=*/false)) {
    run_on(layout, 3, [&](RankModel& rank) {
      import_weights(weights, rank.model.spec, rank.model.store,
                     {.stored_vocabulary = stored.spec.vocab_size});
      const std::string imported = rank.model.bits(true);
      load_checkpoint(folder / "step-2", rank.model.spec, rank.model.store, nullptr);
      EXPECT_TRUE(imported == rank.model.bits(true)) << layout.name();
    });
  }
}

/// A model with one layer more than the checkpoint misses its tensors on all ranks, one with one layer less
/// finds too many.
TEST(PipelineCheckpoint, WhatAnyRankLacksOrNoRankKnowsIsRefusedOnAllRanksInTheSameWords) {
  const TempFolder folder;
  const Layout two = {2, 1, {}, {0, 1}};
  save_step(folder.path(), two, 1);
  for (const int64_t layers : {1, 3}) {
    ModelConfig other = odd_config();
    other.n_layers = layers;
    const auto failures = run_threads(2, [&](World& world) -> std::string {
      SmallModel model(7, other, rank_groups(world, ParallelDims{.pp = 2}), {}, {0, 1});
      const std::string before = model.bits();
      const std::string loading = message_of<Error>(
          [&] { load_checkpoint(folder / "step-1", model.spec, model.store, &model.optimizer); });
      const std::string importing = message_of<Error>([&] {
        import_weights(checkpoint_tensors(verify_checkpoint(folder / "step-1")), model.spec, model.store);
      });
      EXPECT_EQ(model.bits(), before);
      return loading + importing;
    });
    EXPECT_EQ(failures[0], failures[1]);
    // Of a layer: 2 norms of the block, 2 of queries and keys, 7 matrices; with their moments.
    if (layers == 3) {
      EXPECT_CONTAINS(failures[0],
                      "step-1 is a checkpoint of another model: 33 tensors missing, 0 unexpected",
                      "missing: model.layers.2.mlp.up_proj.weight [25, 18]",
                      "missing: optim.state.model.layers.2.mlp.up_proj.weight.exp_avg [25, 18]",
                      "do not fit the model: 11 tensors missing, 0 unexpected");
    } else {
      EXPECT_CONTAINS(failures[0],
                      "step-1 is a checkpoint of another model: 0 tensors missing, 33 unexpected",
                      "unexpected: \"model.layers.1.mlp.up_proj.weight\"",
                      "do not fit the model: 0 tensors missing, 11 unexpected");
    }
  }
}

TEST(PipelineCheckpoint, ALostShardIsRefusedOnAllRanksNamingItsTensors) {
  const TempFolder folder;
  const Layout two = {2, 1, {}, {0, 1}};
  save_step(folder.path(), two, 1);
  const fs::path step = folder / "step-1";
  const Json layout = read_manifest(step).layout;
  fs::remove(step / "shard-00002-model-00001-of-00001.safetensors");
  write_manifest(step, build_manifest(step, 1, layout));
  run_on(two, 2, [&](RankModel& rank) {
    EXPECT_CONTAINS(message_of<Error>([&] {
                      load_checkpoint(step, rank.model.spec, rank.model.store, &rank.model.optimizer);
                    }),
                    "missing: model.norm.weight [18]", "missing: lm_head.weight [183, 18]");
  });
}

TEST(PipelineCheckpoint, AFrozenUnitOfAnotherRankHasNoMoments) {
  const TempFolder folder;
  ModelSpec spec = model_spec(odd_config());
  spec.units[2].trainable = false;
  const std::vector<int> place = {0, 1};
  const auto failures = run_threads(2, [&](World& world) -> std::string {
    const auto groups = rank_groups(world, ParallelDims{.pp = 2});
    const CheckpointRanks ranks(world.group("checkpoint", all_ranks(2)), 60);
    const ModelSpec part = pipeline_part(spec, place, world.rank());
    ModelStore store(part.units, layout_of_part(part, *groups, {}), {}, groups);
    Optimizer optimizer(store, resolve_param_groups(OptimizerConfig(), spec, part.units));
    store.initialize(3);
    write_checkpoint(folder.path(), 1, stage_checkpoint(part, store, &optimizer, Json::object()), ranks);
    load_checkpoint(checkpoint_of_step(folder.path(), 1, ranks), spec, store, &optimizer);
    return "";
  });
  EXPECT_EQ(failures, (std::vector<std::string>(2)));
  EXPECT_FALSE(saved_elements(folder / "step-1", "")
                   .contains(optimizer_tensor_name("model.layers.1.mlp.up_proj.weight", "exp_avg")));
}

}  // namespace
}  // namespace stepforge::testing
