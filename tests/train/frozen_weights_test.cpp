// SPDX-License-Identifier: Apache-2.0
// Frozen weights in bf16, and checkpoints that leave frozen weights to the model that the run started from.
#include "stepforge/checkpoint/hf_folder.h"
#include "stepforge/checkpoint/native.h"
#include "tests/catalog/all_families.h"
#include "tests/checkpoint/stacked_files.h"
#include "tests/train/ranks.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

/// A Hugging Face folder with weights in `dtype`, of a model that was trained for some steps.
fs::path base_model(const TempFolder& folder, const std::string& name = "base",
                    const std::string& dtype = "bf16", const Strings& more = {}) {
  TestRun(trainer_run(folder / name) +
          Strings{"training.steps=2", "checkpoint.last_save_in_hf=true", "checkpoint.export_dtype=" + dtype,
                  "training.seed=" + std::to_string(name.size())} +
          more)
      .run();
  return folder / name / "hf" / "step-2";
}

/// 4 steps from `base` with a frozen layer and embedding, and a frozen matrix of the other layer.
Strings frozen_run(const TempFolder& folder, const std::string& name, const fs::path& base,
                   const Strings& more = {}) {
  return trainer_run(folder / name) +
         Strings{format("checkpoint.initial_load_path={}", base.string()),
                 "model.freeze=layers.0,embedding,model.layers.1.mlp.down_proj.weight", "training.steps=4",
                 "checkpoint.interval=2", "lr_scheduler.warmup_steps=0"} +
         more;
}

const Strings kInBf16{"model.frozen_dtype=bf16"};
const Strings kLeftOut{"checkpoint.exclude_frozen=true"};

/// Losses and norms; bits of weights in other types differ.
std::vector<std::pair<double, double>> curve(const Records& records) {
  std::vector<std::pair<double, double>> values;
  for (const StepRecord& record : records) values.emplace_back(record.loss, record.grad_norm);
  return values;
}

/// The names of tensors in the files of a checkpoint.
std::vector<std::string> stored_names(const TempFolder& folder, const std::string& run, int64_t step) {
  return stored_tensors(folder / run / "checkpoint" / format("step-{}", step)).names();
}

int64_t weights_in_plan(const StepProgram& program) {
  int64_t bytes = 0;
  for (const Buffer& buffer : program.buffers)
    if (buffer.kind == BufferKind::weights) bytes += buffer.bytes;
  return bytes;
}

TEST(FrozenInBf16, TrainsAsInFp32WithHalfTheirMemory) {
  const TempFolder folder;
  const fs::path base = base_model(folder);
  for (const Strings& precision : {Strings{}, Strings{"precision.compute=bf16"}}) {
    TestRun wide(frozen_run(folder, "wide", base, precision + Strings{"checkpoint.enable=false"}));
    TestRun narrow(
        frozen_run(folder, "narrow", base, precision + kInBf16 + Strings{"checkpoint.enable=false"}));
    const Records expected = wide.run();
    EXPECT_EQ(curve(narrow.run()), curve(expected));
    int64_t frozen = 0;
    const ModelStore& store = *narrow.trainer().store;
    for (size_t unit = 0; unit < store.size(); ++unit) {
      EXPECT_EQ(store.unit(unit).master().scalar_type(),
                store.unit(unit).trained() ? at::kFloat : at::kBFloat16);
      if (!store.unit(unit).trained()) frozen += store.unit(unit).shard_size();
    }
    EXPECT_EQ(weights_in_plan(wide.trainer().train_program) - weights_in_plan(narrow.trainer().train_program),
              2 * frozen);
  }
}

TEST(FrozenInBf16, TrainsAsInFp32InEveryLayout) {
  const TempFolder folder;
  const fs::path base = base_model(folder);
  const std::vector<Strings> layouts = {
      {},
      {"parallelism.data_parallel_replicate_degree=2"},
      {"parallelism.fsdp_partition=by_dim", "precision.compute=bf16"},
      {"parallelism.fsdp_cpu_offload=true"},
      {"parallelism.tensor_parallel_degree=2",
       "parallelism.tensor_parallel_plan=[{pattern=\"attention\",style=\"replicate\"}]"},
      {"parallelism.pipeline_parallel_degree=2", "training.local_batch_size=1"}};
  for (const Strings& layout : layouts) {
    const Strings both = layout + Strings{"checkpoint.enable=false"};
    const auto wide = RankThreads(2).run(frozen_run(folder, "wide", base, both));
    const auto narrow = RankThreads(2).run(frozen_run(folder, "narrow", base, both + kInBf16));
    for (size_t rank = 0; rank < 2; ++rank)
      EXPECT_EQ(curve(narrow[rank]), curve(wide[rank])) << join(layout, " ");
  }
}

TEST(FrozenInBf16, ARunResumesWithTheSameBits) {
  const TempFolder folder;
  const fs::path base = base_model(folder, "base", "fp32");  // rounded when it is loaded
  const Records whole = TestRun(frozen_run(folder, "whole", base, kInBf16)).run();
  TestRun(frozen_run(folder, "parts", base, kInBf16)).run(2);
  const Records rest = TestRun(frozen_run(folder, "parts", base, kInBf16)).run();
  ASSERT_EQ(rest.size(), 2U);
  EXPECT_EQ(rest.back(), whole.back());
}

TEST(FrozenInBf16, WithoutFrozenWeightsIsRefused) {
  const TempFolder folder;
  EXPECT_CONTAINS(message_of<UsageError>([&] { TestRun(trainer_run(folder / "run") + kInBf16); }),
                  "model.frozen_dtype = \"bf16\"", "no weights are frozen");
}

TEST(ExcludeFrozen, CheckpointsHaveTheOtherWeightsAndARunResumesWithTheSameBits) {
  const TempFolder folder;
  const fs::path base = base_model(folder);
  for (const Strings& dtype : {Strings{}, kInBf16}) {
    const std::string name = dtype.empty() ? "fp32" : "bf16";
    const Records whole = TestRun(frozen_run(folder, name + "whole", base, dtype)).run();
    TestRun(frozen_run(folder, name, base, dtype + kLeftOut)).run(2);
    for (const std::string& stored : stored_names(folder, name, 2)) {
      EXPECT_FALSE(contains(stored, "layers.0.") || contains(stored, "embed_tokens") ||
                   contains(stored, "layers.1.mlp.down_proj"))
          << stored;
    }
    const Records rest = TestRun(frozen_run(folder, name, base, dtype + kLeftOut)).run();
    ASSERT_EQ(rest.size(), 2U);
    EXPECT_EQ(rest.back(), whole.back());
  }
}

TEST(ExcludeFrozen, EveryLayoutResumesEveryOther) {
  const TempFolder folder;
  const fs::path base = base_model(folder);
  const Records whole = TestRun(frozen_run(folder, "whole", base, {"training.reduction=ordered"})).run();
  const Strings ordered = kLeftOut + Strings{"training.reduction=ordered", "training.local_batch_size=1"};
  RankThreads(2).run(frozen_run(folder, "run", base, ordered), 2);
  const auto rest = RankThreads(2).run(
      frozen_run(folder, "run", base, ordered + Strings{"parallelism.pipeline_parallel_degree=2"}));
  for (const Records& records : rest) {
    ASSERT_EQ(records.size(), 2U);
    EXPECT_EQ(curve(records), curve({whole[2], whole[3]}));
  }
}

TEST(ExcludeFrozen, ACheckpointIsOpenedWithTheWeightsThatItLeavesOut) {
  const TempFolder folder;
  const fs::path base = base_model(folder);
  TestRun(frozen_run(folder, "whole", base)).run();
  TestRun(frozen_run(folder, "run", base, kLeftOut)).run();
  const auto exported = [&](const std::string& run) {
    const FoundCheckpoint found = verify_checkpoint(folder / run / "checkpoint" / "step-4");
    const Config config = known_checkpoint(found.path).config;
    export_hf(folder / run / "out", config.model, plan_model(config), checkpoint_tensors(found), nullptr);
    return read_file(folder / run / "out" / "model.safetensors");
  };
  EXPECT_TRUE(exported("run") == exported("whole"));
  // A run may start from it, and leave the same weights out.
  const fs::path first = folder / "run" / "checkpoint" / "step-4";
  TestRun(frozen_run(folder, "next", first, kLeftOut)).run(2);
  TestRun next(frozen_run(folder, "next", first, kLeftOut));
  EXPECT_EQ(next.build().left_out.from, base);
}

/// Of experts, the folder that has the frozen weights may hold them stacked or not, and be replaced by one of the other kind.
TEST(ExcludeFrozen, StackedExpertsAreTheSameWeights) {
  const TempFolder folder;
  const Strings experts = setting_overrides("mixtral", /*windows=*/false);
  const fs::path single = base_model(folder, "base", "bf16", experts);
  const fs::path stacked = folder / "stacked";
  fs::create_directory(stacked);
  fs::copy_file(single / "config.json", stacked / "config.json");
  write_tensors(stacked / "model.safetensors", stack_experts(tensors_of(single)));
  const Strings frozen = experts + Strings{"model.freeze=layers.0,embedding,layers.1.mlp.expert_down"};
  const Records whole = TestRun(frozen_run(folder, "whole", single, frozen)).run();
  const auto exported = [&](const std::string& run) {
    const FoundCheckpoint found = verify_checkpoint(folder / run / "checkpoint" / "step-4");
    const Config config = known_checkpoint(found.path).config;
    export_hf(folder / run / "out", config.model, plan_model(config), checkpoint_tensors(found), nullptr);
    return read_file(folder / run / "out" / "model.safetensors");
  };
  const std::string expected = exported("whole");
  int number = 0;
  for (const auto& [first, then] : {std::pair{stacked, stacked}, {stacked, single}, {single, stacked}}) {
    const std::string run = format("run-{}", ++number);
    TestRun(frozen_run(folder, run, first, frozen + kLeftOut)).run(2);
    const Records rest = TestRun(frozen_run(folder, run, then, frozen + kLeftOut)).run();
    ASSERT_EQ(rest.size(), 2U);
    EXPECT_EQ(rest.back(), whole.back()) << run;
    EXPECT_TRUE(exported(run) == expected) << run;
  }
}

TEST(ExcludeFrozen, OtherFrozenWeightsAreRefused) {
  const TempFolder folder;
  const fs::path base = base_model(folder);
  TestRun(frozen_run(folder, "run", base, kLeftOut)).run(2);
  const fs::path other = base_model(folder, "another");
  EXPECT_CONTAINS(
      message_of<UsageError>([&] { TestRun(frozen_run(folder, "run", other, kLeftOut)).build(); }),
      "step-2 was saved without its frozen weights", other.string(), "of 11 tensors differ",
      "checkpoint.initial_load_path");
  RankThreads ranks(2);
  ranks.run([&](int) { return frozen_run(folder, "run", other, kLeftOut); }, {});
  for (const std::string& failure : ranks.failures) EXPECT_CONTAINS(failure, "of 11 tensors differ");
  fs::remove_all(other);
  EXPECT_CONTAINS(
      message_of<Error>([&] { verify_checkpoint(folder / "run" / "checkpoint" / "step-2", {}, other); }),
      "there is no model folder");
}

/// Weights that were trained before they were frozen are not those of the model that the run started from.
TEST(ExcludeFrozen, WeightsThatWereTrainedAreNotLeftOut) {
  const TempFolder folder;
  const fs::path base = base_model(folder);
  TestRun(frozen_run(folder, "run", base, {"model.freeze=layers.0"})).run(2);
  TestRun later(frozen_run(folder, "run", base,
                           kLeftOut + Strings{"checkpoint.allow_changed=model", "checkpoint.strict=false"}));
  EXPECT_CONTAINS(message_of<UsageError>([&] { later.build(); }), "checkpoint.exclude_frozen", "differ",
                  "2 of 11 tensors differ", "model.embed_tokens.weight");
}

TEST(ExcludeFrozen, NeedsFrozenWeightsAndAModelThatHasThem) {
  const TempFolder folder;
  EXPECT_CONTAINS(message_of<UsageError>([&] { TestRun(trainer_run(folder / "run") + kLeftOut); }),
                  "no weights are frozen", "start from a model with model.from");
}

}  // namespace
}  // namespace stepforge::testing
