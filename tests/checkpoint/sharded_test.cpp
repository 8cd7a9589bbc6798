// SPDX-License-Identifier: Apache-2.0
// Checkpoints that several ranks write or read.
#include <algorithm>
#include <map>

#include "stepforge/base/error.h"
#include "stepforge/checkpoint/hf_folder.h"
#include "stepforge/tensorfile/dcp.h"
#include "stepforge/tensorfile/manifest.h"
#include "tests/checkpoint/layouts.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

std::vector<Layout> layouts() {
  const Partition whole_tensors = {PartitionKind::by_tensor};
  const Partition rows = {PartitionKind::by_dim, 0};
  const Partition columns = {PartitionKind::by_dim, 1};
  return {{1, 1},
          {2, 1},
          {2, 2},
          {3, 1},
          {3, 3},
          {4, 1},
          {4, 2},
          {5, 1},
          {6, 3},
          {8, 1},
          {2, 1, whole_tensors},
          {6, 2, whole_tensors},
          {3, 1, rows},
          {8, 1, rows},
          {4, 2, columns},
          {5, 1, columns}};
}

std::vector<fs::path> tensor_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const std::string& name : names_in(folder)) {
    if (fs::path(name).extension() == ".safetensors") files.push_back(folder / name);
  }
  return files;
}

// Finds what went wrong in ISEEKYAN/Megatron-LM#104 (whole weights, but not the moments of the shard).
TEST(ShardedCheckpoint, AnyLayoutReadsEveryBitOfAnyOther) {
  const TempFolder folder;
  for (size_t i = 0; i < layouts().size(); ++i) save_step(folder.path(), layouts()[i], i);
  for (const Layout& layout : layouts()) {
    run_on(layout, 1000, [&](RankModel& rank) {
      for (uint64_t seed = 0; seed < layouts().size(); ++seed) {
        const auto found = checkpoint_of_step(folder.path(), static_cast<int64_t>(seed), rank.ranks);
        load_checkpoint(found, rank.model.spec, rank.model.store, &rank.model.optimizer);
        const std::string loaded = rank.model.bits();
        rank.model.refill(seed);
        EXPECT_EQ(loaded == rank.model.bits(), true)
            << layouts()[seed].name() << " into " << layout.name() << ", rank " << rank.ranks.rank();
        rank.model.refill(1000);
      }
    });
  }
}

TEST(ShardedCheckpoint, EachRankWritesItsOwnFilesAndEveryElementIsWrittenOnce) {
  for (const Layout& layout : layouts()) {
    if (layout.ranks == 1) continue;
    const TempFolder folder;
    save_step(folder.path(), layout, 1);
    int64_t elements = 0;
    for (const fs::path& path : tensor_files(folder / "step-1")) {
      EXPECT_TRUE(path.filename().string().starts_with("shard-")) << path;
      const SafetensorsFile file(path);
      EXPECT_EQ(read_saved_offsets(file).size(), file.tensors().size());
      for (const TensorEntry& tensor : file.tensors()) elements += tensor.bytes() / 4;
    }
    const SmallModel whole(1, odd_config());
    EXPECT_EQ(elements, 3 * whole.spec.parameter_count()) << layout.name();
    EXPECT_EQ(checkpoint_tensors(verify_checkpoint(folder / "step-1")).size(),
              3 * named_tensors(whole.spec).size());
  }
}

TEST(ShardedCheckpoint, APartThatStartsAndEndsInsideARowIsThreeSlicesInThreeFiles) {
  const TempFolder folder;
  save_step(folder.path(), {4, 1}, 1);
  const std::string name = "model.embed_tokens.weight";  // [183, 18]; rank 1 holds elements 1,024 to 2,048
  const std::vector<TensorSlice> expected = {{{56, 16}, {1, 2}}, {{57, 0}, {56, 18}}, {{113, 0}, {1, 14}}};
  for (size_t i = 0; i < expected.size(); ++i) {
    for (const char* kind : {"model", "optimizer"}) {
      const bool model = kind == std::string("model");
      const std::string stored = model ? name : optimizer_tensor_name(name, "exp_avg_sq");
      const SafetensorsFile file(folder / "step-1" / dcp_file_name(kind, 1, static_cast<int>(i), 3));
      ASSERT_NE(file.find(stored), nullptr);
      EXPECT_EQ(file.find(stored)->shape, expected[i].sizes);
      EXPECT_EQ(read_saved_offsets(file).at(stored), expected[i].offsets);
    }
  }
}

TEST(ShardedCheckpoint, ReplicasShareTheWorkEvenly) {
  for (const Layout& layout : {Layout{2, 2}, Layout{4, 2}, Layout{6, 3}}) {
    std::vector<int64_t> bytes(static_cast<size_t>(layout.ranks));
    run_on(layout, 1,
           [&](RankModel& rank) { bytes[static_cast<size_t>(rank.ranks.rank())] = rank.stage().bytes(); });
    const int shards = layout.ranks / layout.replicas;
    for (int rank = 0; rank < layout.ranks; ++rank) {
      EXPECT_NEAR(static_cast<double>(bytes[static_cast<size_t>(rank)]),
                  static_cast<double>(bytes[static_cast<size_t>(rank % shards)]), 24.0);
    }
  }
}

TEST(ShardedCheckpoint, ARankStagesNoMoreThanItHolds) {
  run_on({4, 1}, 1, [](RankModel& rank) {
    int64_t held = 0;
    for (size_t unit = 0; unit < rank.model.store.size(); ++unit) {
      for (const at::Tensor& flat : rank.model.flats(unit)) held += static_cast<int64_t>(flat.nbytes());
    }
    EXPECT_LE(rank.stage().bytes(), held);
  });
}

TEST(ShardedCheckpoint, OnlyTheSlicesOfTheTensorsDependOnRanks) {
  const TempFolder folder;
  save_step(folder / "one", {1, 1}, 1);
  save_step(folder / "four", {4, 2}, 1);
  const auto read = [&](const std::string& layout, std::string_view file) {
    return read_file(folder / layout / "step-1" / file);
  };
  EXPECT_EQ(read("four", "state.json"), read("one", "state.json"));
  Json one = Json::parse(read("one", "manifest.json"));
  Json four = Json::parse(read("four", "manifest.json"));
  one.erase("files");
  four.erase("files");
  EXPECT_EQ(four, one);
  const FoundCheckpoint left = verify_checkpoint(folder / "one" / "step-1");
  const FoundCheckpoint right = verify_checkpoint(folder / "four" / "step-1");
  EXPECT_EQ(checkpoint_tensors(left).names(), checkpoint_tensors(right).names());
}

TEST(ShardedCheckpoint, SavingAStepAgainFromAnotherLayoutReplacesAllItsFiles) {
  const TempFolder folder;
  save_step(folder.path(), {3, 1}, 5);
  save_step(folder.path(), {1, 1}, 5);
  EXPECT_EQ(names_in(folder / "step-5"), (std::vector<std::string>{"manifest.json", "model.safetensors",
                                                                   "optimizer.safetensors", "state.json"}));
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"step-5"});
}

TEST(ShardedCheckpoint, DamageInAnyFileIsSeenByAllRanksAndThePreviousStepIsUsed) {
  const TempFolder folder;
  save_step(folder.path(), {3, 1}, 10);
  save_step(folder.path(), {3, 1}, 20);
  for (const fs::path& path : tensor_files(folder / "step-20")) {
    flip_bit(path, 1);
    run_on({3, 1}, 1, [&](RankModel& rank) {
      RecordedLog log;
      const auto found = newest_complete_checkpoint(folder.path(), log.logger(), rank.ranks);
      EXPECT_EQ(found.value_or(FoundCheckpoint{}).step, 10) << path;
      EXPECT_CONTAINS(log.text(), path.filename().string() + ": changed");
      EXPECT_CONTAINS(log.text(), (folder / "step-10").string() + " is used instead");
    });
    flip_bit(path, 1);  // restores the file
  }
  EXPECT_NO_THROW(verify_checkpoint(folder / "step-20"));
}

TEST(ShardedCheckpoint, RanksThatSeeDifferentFoldersRefuseTogether) {
  const TempFolder folder;
  for (const char* name : {"one", "two"}) {
    write_checkpoint(folder / name, 5, SmallModel(name[0], odd_config()).stage());
  }
  run_on({2, 1}, 1, [&](RankModel& rank) {
    EXPECT_CONTAINS(message_of<Error>([&] {
                      verify_checkpoint(folder / (rank.ranks.rank() == 0 ? "one" : "two") / "step-5",
                                        rank.ranks);
                    }),
                    "rank 1 differs from that of rank 0");
  });
}

// Finds what went wrong in sglang#36438 (shards half loaded).
TEST(ShardedCheckpoint, AMissingOrDuplicateShardIsRefusedNamingTensorAndFile) {
  const TempFolder folder;
  save_step(folder.path(), {2, 1}, 1);
  const fs::path step = folder / "step-1";
  const auto shards = tensor_files(step);
  const fs::path shard = *std::find_if(shards.begin(), shards.end(), [](const fs::path& path) {
    return contains(path.filename().string(), "shard-00002-model-00001");
  });
  SmallModel model(7, odd_config());
  const std::string before = model.bits();
  const Json layout = read_manifest(step).layout;
  const auto refusal = [&] {
    write_manifest(step, build_manifest(step, 1, layout));
    return message_of<FormatError>([&] { load_checkpoint(step, model.spec, model.store, &model.optimizer); });
  };
  fs::copy_file(shard, step / "copy.safetensors");
  EXPECT_CONTAINS(refusal(), "copy.safetensors and in " + shard.string() + ", which both hold [");
  fs::remove(shard);
  fs::remove(step / "copy.safetensors");
  EXPECT_CONTAINS(refusal(), "elements are in no file");
  EXPECT_EQ(model.bits(), before);
}

// Finds what went wrong in torchtitan#3807: a fused qkv over more ranks than key-value heads.
TEST(ShardedCheckpoint, ExportsTheSameAsOneRankAndIsReadBackByAnyLayout) {
  const TempFolder folder;
  save_step(folder / "one", {1, 1}, 1);
  save_step(folder / "six", {6, 3}, 1);
  const SmallModel model(1, odd_config());
  for (const DType dtype : {DType::f32, DType::bf16}) {
    std::map<std::string, std::string> exported;
    for (const char* layout : {"one", "six"}) {
      const fs::path out = folder / format("{}-{}", layout, dtype_name(dtype));
      const FoundCheckpoint found = verify_checkpoint(folder / layout / "step-1");
      export_hf(out, model.config, model.spec, checkpoint_tensors(found), nullptr, {dtype, 3000});
      for (const std::string& name : names_in(out)) exported[layout] += name + read_file(out / name);
    }
    EXPECT_TRUE(exported["one"] == exported["six"]);
  }
  run_on({5, 1}, 2, [&](RankModel& rank) {
    import_hf(folder / "six-fp32", rank.model.spec, rank.model.store);
    const std::string loaded = rank.model.bits(true);
    rank.model.refill(1);
    EXPECT_TRUE(loaded == rank.model.bits(true));
  });
}

TEST(ShardedCheckpoint, ASmallerVocabularyGrowsInTheSameWayInEveryLayout) {
  const TempFolder folder;
  ModelConfig smaller = odd_config();
  smaller.vocab_size -= 5;
  const SmallModel stored(1, smaller);
  write_checkpoint(folder.path(), 1, stored.stage());
  const FoundCheckpoint found = verify_checkpoint(folder / "step-1");
  SmallModel grown(2, odd_config());
  import_weights(checkpoint_tensors(found), grown.spec, grown.store,
                 {.stored_vocabulary = stored.spec.vocab_size});
  write_checkpoint(folder.path(), 2, grown.stage());
  for (const Layout& layout : layouts()) {
    run_on(layout, 3, [&](RankModel& rank) {
      import_weights(checkpoint_tensors(found), rank.model.spec, rank.model.store,
                     {.stored_vocabulary = stored.spec.vocab_size});
      const std::string imported = rank.model.bits(true);
      load_checkpoint(folder / "step-2", rank.model.spec, rank.model.store, nullptr);
      EXPECT_TRUE(imported == rank.model.bits(true)) << layout.name();
    });
  }
}

}  // namespace
}  // namespace stepforge::testing
