// SPDX-License-Identifier: Apache-2.0
#include "stepforge/checkpoint/native.h"

#include <algorithm>
#include <functional>

#include <ATen/ops/equal.h>

#include "stepforge/base/error.h"
#include "stepforge/tensorfile/dcp.h"
#include "stepforge/tensorfile/manifest.h"
#include "tests/checkpoint/fixture.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

/// The layout field of a manifest.
Json layout(bool optimizer) {
  return {{"tensor_names", "hugging_face"}, {"optimizer", optimizer}};
}

TEST(NativeCheckpoint, RestoresEveryBitOfMastersMomentsStepsAndState) {
  const TempFolder folder;
  for (const bool tied : {false, true}) {
    const SmallModel saved(1, small_config("qwen3", tied));
    const Json state = {
        {"step", tied ? 8 : 7}, {"loss", 0.1}, {"loader", {{"epoch", 1}, {"row", 12345678901}}}};
    write_checkpoint(folder.path(), tied ? 8 : 7, saved.stage(state));
    SmallModel loaded(2, saved.config);
    Json found =
        load_checkpoint(folder / (tied ? "step-8" : "step-7"), loaded.spec, loaded.store, &loaded.optimizer);
    EXPECT_EQ(loaded.bits(), saved.bits());
    EXPECT_EQ(loaded.optimizer.steps(), 101);
    EXPECT_EQ(found.at("optimizer_steps"), 101);
    found.erase("optimizer_steps");
    EXPECT_EQ(found, state);
  }
}

TEST(NativeCheckpoint, UsesHuggingFaceNamesWithOneTensorPerSubTensor) {
  const TempFolder folder;
  const SmallModel model(1, small_config("llama", /*tied=*/true));
  write_checkpoint(folder.path(), 1, model.stage());
  EXPECT_EQ(names_in(folder / "step-1"),
            (Names{"manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"}));

  const SafetensorsFile weights(folder / "step-1" / "model.safetensors");
  const std::string layer = "model.layers.1.";
  const auto shape_of = [&](const std::string& name) { return weights.find(name)->shape; };
  EXPECT_EQ(weights.tensors().size(), 2 + 2 * 9);  // the tied head is not stored twice
  EXPECT_EQ(weights.find("lm_head.weight"), nullptr);
  EXPECT_EQ(shape_of("model.embed_tokens.weight"), (std::vector<int64_t>{40, 16}));
  EXPECT_EQ(shape_of(layer + "self_attn.q_proj.weight"), (std::vector<int64_t>{24, 16}));
  EXPECT_EQ(shape_of(layer + "self_attn.k_proj.weight"), (std::vector<int64_t>{12, 16}));
  EXPECT_EQ(shape_of(layer + "self_attn.v_proj.weight"), (std::vector<int64_t>{12, 16}));
  EXPECT_EQ(shape_of(layer + "self_attn.o_proj.weight"), (std::vector<int64_t>{16, 24}));
  EXPECT_EQ(shape_of(layer + "mlp.gate_proj.weight"), (std::vector<int64_t>{24, 16}));
  EXPECT_EQ(shape_of(layer + "mlp.up_proj.weight"), (std::vector<int64_t>{24, 16}));
  EXPECT_EQ(shape_of(layer + "mlp.down_proj.weight"), (std::vector<int64_t>{16, 24}));
  EXPECT_EQ(shape_of(layer + "input_layernorm.weight"), (std::vector<int64_t>{16}));
  EXPECT_EQ(shape_of("model.norm.weight"), (std::vector<int64_t>{16}));

  const SafetensorsFile moments(folder / "step-1" / "optimizer.safetensors");
  EXPECT_EQ(moments.tensors().size(), 2 * weights.tensors().size());
  EXPECT_EQ(moments.find("optim.state." + layer + "mlp.up_proj.weight.exp_avg")->shape,
            (std::vector<int64_t>{24, 16}));
  EXPECT_NE(moments.find("optim.state.model.norm.weight.exp_avg_sq"), nullptr);
}

TEST(NativeCheckpoint, ATensorInAFileHoldsTheRowsOfItsSubTensor) {
  const TempFolder folder;
  const SmallModel model(3);
  write_checkpoint(folder.path(), 1, model.stage());
  const SafetensorsFile weights(folder / "step-1" / "model.safetensors");
  size_t seen = 0;
  for (size_t unit = 0; unit < model.spec.units.size(); ++unit) {
    for (size_t i = 0; i < model.spec.units[unit].parameters.size(); ++i) {
      at::Tensor rest = model.store.unit(unit).master_view(i);
      for (const SubTensor& sub_tensor : model.spec.units[unit].parameters[i].sub_tensors) {
        const at::Tensor rows = rest.narrow(0, 0, sub_tensor.rows);
        rest = rest.narrow(0, sub_tensor.rows, rest.size(0) - sub_tensor.rows);
        const std::vector<std::byte> bytes = weights.bytes(*weights.find(sub_tensor.hf_name));
        ASSERT_EQ(bytes.size(), rows.nbytes());
        EXPECT_EQ(std::memcmp(bytes.data(), rows.const_data_ptr(), bytes.size()), 0) << sub_tensor.hf_name;
        ++seen;
      }
    }
  }
  EXPECT_EQ(seen, weights.tensors().size());
}

TEST(NativeCheckpoint, CarriesShardingInformationForEveryTensor) {
  const TempFolder folder;
  const SmallModel model(1);
  write_checkpoint(folder.path(), 1, model.stage());
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    const SafetensorsFile file(folder / "step-1" / name);
    ASSERT_TRUE(file.metadata().contains("DCP_SHARDING_INFO"));
    EXPECT_EQ(read_saved_offsets(file).size(), file.tensors().size());
  }
}

TEST(NativeCheckpoint, WeightsOnlyLoadsWithoutTouchingTheOptimizer) {
  const TempFolder folder;
  const SmallModel saved(1);
  write_checkpoint(folder.path(), 1, saved.stage());
  write_checkpoint(folder.path(), 2, stage_checkpoint(saved.spec, saved.store, nullptr, Json::object()));
  EXPECT_EQ(names_in(folder / "step-2"), (Names{"manifest.json", "model.safetensors", "state.json"}));
  for (const char* step : {"step-1", "step-2"}) {
    SmallModel loaded(2);
    const SmallModel untouched(2);
    load_checkpoint(folder / step, loaded.spec, loaded.store, nullptr);
    EXPECT_EQ(loaded.bits(true), saved.bits(true));
    EXPECT_TRUE(at::equal(loaded.optimizer.slot(1, 0), untouched.optimizer.slot(1, 0)));
    EXPECT_EQ(loaded.optimizer.steps(), untouched.optimizer.steps());
  }
  SmallModel loaded(2);
  EXPECT_CONTAINS(message_of<Error>([&] {
                    load_checkpoint(folder / "step-2", loaded.spec, loaded.store, &loaded.optimizer);
                  }),
                  "holds weights only");
}

TEST(NativeCheckpoint, ADifferentModelIsRefusedWithEveryDifferenceAndNothingChanges) {
  const TempFolder folder;
  write_checkpoint(folder.path(), 1, SmallModel(1).stage());
  ModelConfig config = small_config("qwen3", /*tied=*/true);
  config.vocab_size = 48;
  config.n_layers = 1;
  SmallModel other(2, config);
  const std::string before = other.bits();
  const std::string message = message_of<Error>(
      [&] { load_checkpoint(folder / "step-1", other.spec, other.store, &other.optimizer); });
  EXPECT_EQ(other.bits(), before);
  EXPECT_CONTAINS(message, "step-1 is a checkpoint of another model");
  EXPECT_CONTAINS(message, "missing: model.layers.0.self_attn.q_norm.weight [6]");
  EXPECT_CONTAINS(message, "missing: optim.state.model.layers.0.self_attn.k_norm.weight.exp_avg_sq [6]");
  EXPECT_CONTAINS(message, "unexpected: \"lm_head.weight\"");
  EXPECT_CONTAINS(message, "unexpected: \"optim.state.model.layers.1.mlp.up_proj.weight.exp_avg\"");
  EXPECT_CONTAINS(message, "different shape: model.embed_tokens.weight is [40, 16], expected [48, 16]");
  // 2 norms and their moments; the head, layer 1 and their moments; the embedding and its moments.
  EXPECT_CONTAINS(message, "6 tensors missing, 30 unexpected, 3 different");
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 6 + 30 + 3);
}

TEST(NativeCheckpoint, TensorsOfADifferentTypeAreRefused) {
  const TempFolder folder;
  const SmallModel model(1);
  fs::create_directories(folder / "step-1");
  std::vector<TensorSpec> specs;
  for (const NamedTensor& tensor : named_tensors(model.spec))
    specs.push_back({tensor.name, DType::bf16, tensor.shape});
  SafetensorsWriter writer(folder / "step-1" / "model.safetensors", specs);
  for (const TensorSpec& spec : specs) {
    writer.write(spec.name, std::vector<std::byte>(static_cast<size_t>(spec.bytes())));
  }
  writer.finish();
  write_text(folder / "step-1" / "state.json", "{}");
  write_manifest(folder / "step-1", build_manifest(folder / "step-1", 1, layout(/*optimizer=*/false)));
  SmallModel other(2);
  const std::string message =
      message_of<Error>([&] { load_checkpoint(folder / "step-1", other.spec, other.store, nullptr); });
  EXPECT_CONTAINS(message, "different dtype: model.norm.weight is BF16, expected F32");
  EXPECT_EQ(other.bits(), SmallModel(2).bits());
}

TEST(NativeCheckpoint, WithoutAValidNumberOfOptimizerStepsItIsRefused) {
  const TempFolder folder;
  const SmallModel model(1);
  for (const char* text : {"{}", "{\"optimizer_steps\": -1}", "{\"optimizer_steps\": 1.5}",
                           "{\"optimizer_steps\": 9223372036854775807}", "[]"}) {
    write_checkpoint(folder.path(), 1, model.stage());
    write_text(folder / "step-1" / "state.json", text);
    write_manifest(folder / "step-1", build_manifest(folder / "step-1", 1, layout(/*optimizer=*/true)));
    SmallModel other(2);
    const std::string message = message_of<FormatError>(
        [&] { load_checkpoint(folder / "step-1", other.spec, other.store, &other.optimizer); });
    EXPECT_CONTAINS(message, "state.json") << text;
    EXPECT_EQ(other.bits(), SmallModel(2).bits());
  }
}

TEST(NativeCheckpoint, SavingAStepAgainReplacesTheWholeFolder) {
  const TempFolder folder;
  const SmallModel first(1);
  const SmallModel second(2);
  write_checkpoint(folder.path(), 5, first.stage());
  flip_bit(folder / "step-5" / "model.safetensors", 9);  // a damaged one is replaced as well
  write_checkpoint(folder.path(), 5, stage_checkpoint(second.spec, second.store, nullptr, Json::object()));
  EXPECT_EQ(names_in(folder.path()), Names{"step-5"});
  EXPECT_EQ(names_in(folder / "step-5"), (Names{"manifest.json", "model.safetensors", "state.json"}));
  SmallModel loaded(3);
  load_checkpoint(folder / "step-5", loaded.spec, loaded.store, nullptr);
  EXPECT_EQ(loaded.bits(true), second.bits(true));
}

TEST(NativeCheckpoint, StagingAgainUsesTheSameMemory) {
  const TempFolder folder;
  SmallModel model(1);
  StagedCheckpoint staged = model.stage();
  const std::byte* memory = staged.memory().data();
  model.refill(9);
  staged = stage_checkpoint(model.spec, model.store, &model.optimizer, Json::object(), std::move(staged));
  EXPECT_EQ(staged.memory().data(), memory);
  EXPECT_EQ(staged.bytes(), 3 * 4 * model.spec.parameter_count());
  write_checkpoint(folder.path(), 1, staged);
  SmallModel loaded(2);
  load_checkpoint(folder / "step-1", loaded.spec, loaded.store, &loaded.optimizer);
  EXPECT_EQ(loaded.bits(), model.bits());
}

struct Damage {
  std::string file;   // the message must name it
  std::string fault;  // the message must contain it
  std::function<void(const fs::path& step_folder)> inflict;
};

std::vector<Damage> damages() {
  const auto truncate = [](const std::string& file, uintmax_t by) {
    return [=](const fs::path& step) { fs::resize_file(step / file, fs::file_size(step / file) - by); };
  };
  return {
      {"model.safetensors", "truncated", truncate("model.safetensors", 1)},
      {"optimizer.safetensors", "truncated", truncate("optimizer.safetensors", 4096)},
      {"state.json", "truncated", truncate("state.json", 2)},
      {"model.safetensors", "changed", [](const fs::path& step) { flip_bit(step / "model.safetensors", 1); }},
      {"model.safetensors", "changed",
       [](const fs::path& step) {
         flip_bit(step / "model.safetensors",
                  static_cast<int64_t>(fs::file_size(step / "model.safetensors")) - 20);
       }},
      {"optimizer.safetensors", "changed",
       [](const fs::path& step) { flip_bit(step / "optimizer.safetensors", 777); }},
      {"state.json", "changed", [](const fs::path& step) { flip_bit(step / "state.json", 5); }},
      {"model.safetensors", "missing", [](const fs::path& step) { fs::remove(step / "model.safetensors"); }},
      {"optimizer.safetensors", "missing",
       [](const fs::path& step) { fs::remove(step / "optimizer.safetensors"); }},
      {"state.json", "missing", [](const fs::path& step) { fs::remove(step / "state.json"); }},
      {"state.json", "not a regular file",
       [](const fs::path& step) {
         fs::rename(step / "state.json", step / "elsewhere");
         fs::create_symlink("elsewhere", step / "state.json");
       }},
      {"extra.safetensors", "not listed",
       [](const fs::path& step) { fs::copy_file(step / "model.safetensors", step / "extra.safetensors"); }},
      {"manifest.json", "", [](const fs::path& step) { fs::remove(step / "manifest.json"); }},
      {"manifest.json", "", truncate("manifest.json", 20)},
      {"manifest.json", "",
       [](const fs::path& step) { write_text(step / "manifest.json", "\x00\xff garbage"); }},
      {"manifest.json", "", [](const fs::path& step) { write_text(step / "manifest.json", ""); }},
      {"manifest.json", "",
       [](const fs::path& step) {
         write_text(step / "manifest.json",
                    R"({"format":"stepforge-checkpoint","version":1,"step":20,"layout":{},"files":[]})");
       }},
      {"manifest.json", "the folder is named step-20",
       [](const fs::path& step) {
         write_manifest(step, build_manifest(step, 21, layout(/*optimizer=*/true)));
       }},
      {"manifest.json", "\"layout\" is not a JSON object",
       [](const fs::path& step) { write_manifest(step, build_manifest(step, 20, 7)); }},
      {"manifest.json", "layout.tensor_names",
       [](const fs::path& step) { write_manifest(step, build_manifest(step, 20, Json::object())); }},
      {"manifest.json", "\"layout.optimizer\" is neither true nor false",
       [](const fs::path& step) {
         write_manifest(step, build_manifest(step, 20, {{"tensor_names", "hugging_face"}, {"optimizer", 1}}));
       }},
      {"manifest.json", "\"layout.optimizer\" is false, but optimizer files are listed",
       [](const fs::path& step) {
         write_manifest(step, build_manifest(step, 20, layout(/*optimizer=*/false)));
       }},
  };
}

TEST(NativeCheckpoint, EveryDamageIsRefusedNamingTheFileAndThePreviousStepIsUsed) {
  const SmallModel good(1);
  const SmallModel newer(2);
  for (size_t i = 0; i < damages().size(); ++i) {
    SCOPED_TRACE(i);
    const Damage damage = damages()[i];
    const TempFolder folder;
    write_checkpoint(folder.path(), 10, good.stage());
    write_checkpoint(folder.path(), 20, newer.stage());
    damage.inflict(folder / "step-20");

    const std::string message = message_of<Error>([&] { checkpoint_of_step(folder.path(), 20); });
    EXPECT_CONTAINS(message, damage.file);
    EXPECT_CONTAINS(message, damage.fault);

    RecordedLog log;
    const auto found = newest_complete_checkpoint(folder.path(), log.logger());
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->step, 10);
    EXPECT_EQ(found->path, folder / "step-10");
    EXPECT_CONTAINS(log.text(), " error ");
    EXPECT_CONTAINS(log.text(), damage.file);
    EXPECT_CONTAINS(log.text(), (folder / "step-10").string() + " is used instead");
    SmallModel loaded(3);
    load_checkpoint(*found, loaded.spec, loaded.store, &loaded.optimizer);
    EXPECT_EQ(loaded.bits(), good.bits());
  }
}

TEST(NativeCheckpoint, LoadingADamagedFolderChangesNothing) {
  const TempFolder folder;
  const SmallModel saved(1);
  for (const Damage& damage : damages()) {
    write_checkpoint(folder.path(), 20, saved.stage());
    damage.inflict(folder / "step-20");
    SmallModel loaded(2);
    EXPECT_THROW(load_checkpoint(folder / "step-20", loaded.spec, loaded.store, &loaded.optimizer), Error);
    EXPECT_EQ(loaded.bits(), SmallModel(2).bits());
  }
}

TEST(NewestCompleteCheckpoint, IsTheHighestStepNotTheOneWrittenLast) {
  const TempFolder folder;
  const SmallModel model(1);
  for (const int64_t step : {9, 100, 20}) write_checkpoint(folder.path(), step, model.stage());
  RecordedLog log;
  EXPECT_EQ(newest_complete_checkpoint(folder.path(), log.logger())->step, 100);
  EXPECT_EQ(log.text(), "");
}

TEST(NewestCompleteCheckpoint, AFolderRenamedToALargeStepIsNotUsed) {
  for (const std::string step : {"30", "9223372036854775807"}) {
    for (const bool in_manifest : {false, true}) {
      const TempFolder folder;
      const SmallModel model(1);
      for (const int64_t saved : {10, 20})
        write_checkpoint(folder.path(), saved, model.stage({{"step", saved}}));
      const fs::path renamed = folder / ("step-" + step);
      fs::copy(folder / "step-10", renamed);
      if (in_manifest) {
        fs::remove(renamed / "manifest.json");
        write_manifest(renamed, build_manifest(renamed, std::stoll(step), layout(/*optimizer=*/true)));
      }
      RecordedLog log;
      EXPECT_EQ(newest_complete_checkpoint(folder.path(), log.logger())->step, 20) << step << in_manifest;
      // The second step is out of range, so the folder is not recognized as a checkpoint.
      EXPECT_EQ(log.text().find("step-" + step) != std::string::npos, step == "30") << log.text();
    }
  }
}

TEST(NewestCompleteCheckpoint, PassesOverAManifestThatIsTooLarge) {
  const TempFolder folder;
  for (const int64_t step : {10, 20}) write_checkpoint(folder.path(), step, SmallModel(1).stage());
  fs::resize_file(folder / "step-20" / "manifest.json", (64 << 20) + 1);
  RecordedLog log;
  EXPECT_EQ(newest_complete_checkpoint(folder.path(), log.logger())->step, 10);
  EXPECT_CONTAINS(log.text(), "manifest.json holds 67108865 bytes", "step-10 is used instead");
}

TEST(NewestCompleteCheckpoint, IsNoneInAnEmptyOrAbsentFolderOrWithOnlyUnfinishedSaves) {
  const TempFolder folder;
  RecordedLog log;
  EXPECT_FALSE(newest_complete_checkpoint(folder.path(), log.logger()).has_value());
  EXPECT_FALSE(newest_complete_checkpoint(folder / "absent", log.logger()).has_value());
  const SmallModel model(1);
  write_checkpoint(folder.path(), 1, model.stage());
  fs::rename(folder / "step-1", folder / "step-1.tmp");
  EXPECT_FALSE(newest_complete_checkpoint(folder.path(), log.logger()).has_value());
  EXPECT_EQ(log.text(), "");
}

TEST(NewestCompleteCheckpoint, IsRefusedWithEachReasonIfAllAreDamaged) {
  const TempFolder folder;
  for (const int64_t step : {1, 2}) write_checkpoint(folder.path(), step, SmallModel(1).stage());
  flip_bit(folder / "step-1" / "model.safetensors", 1);
  fs::remove(folder / "step-2" / "manifest.json");
  RecordedLog log;
  EXPECT_CONTAINS(message_of<UsageError>([&] { newest_complete_checkpoint(folder.path(), log.logger()); }),
                  "no checkpoint in " + folder.path().string() + " can be used",
                  "step-1: model.safetensors: changed", "step-2: manifest.json: missing");
}

TEST(NewestCompleteCheckpoint, OneThatCannotBeReadIsAnErrorAndNotPassedOver) {
  const TempFolder folder;
  write_checkpoint(folder.path(), 1, SmallModel(1).stage());
  fs::create_symlink("step-2", folder / "step-2");  // a loop: every access fails
  RecordedLog log;
  EXPECT_CONTAINS(message_of<Error>([&] { newest_complete_checkpoint(folder.path(), log.logger()); }),
                  "cannot read", "step-2");
}

TEST(CheckpointOfStep, NamesTheAvailableSteps) {
  const TempFolder folder;
  write_checkpoint(folder.path(), 10, SmallModel(1).stage());
  write_checkpoint(folder.path(), 20, SmallModel(1).stage());
  EXPECT_EQ(checkpoint_of_step(folder.path(), 10).path, folder / "step-10");
  EXPECT_CONTAINS(message_of<UsageError>([&] { checkpoint_of_step(folder.path(), 15); }),
                  "available steps: 20, 10");
}

TEST(ReadCheckpointState, NeedsNoModel) {
  const TempFolder folder;
  write_checkpoint(folder.path(), 10, SmallModel(1).stage({{"model", {{"dim", 16}}}}));
  EXPECT_EQ(read_checkpoint_state(verify_checkpoint(folder / "step-10")).at("model").at("dim"), 16);
}

TEST(StageCheckpoint, RefusesAStateThatIsNotAnObject) {
  const SmallModel model(1);
  EXPECT_THROW(model.stage(Json::array()), Error);
}

}  // namespace
}  // namespace stepforge::testing
