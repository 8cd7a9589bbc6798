// SPDX-License-Identifier: Apache-2.0
// The tables of other trainers' keys, and hints from them.
#include "stepforge/config/foreign_keys.h"

#include <map>
#include <set>

#include <gtest/gtest.h>

#include "stepforge/base/format.h"
#include "stepforge/config/schema.h"
#include "tests/config/config_testing.h"

namespace stepforge::testing {
namespace {

TEST(ForeignKeys, GetAHintWithOurKeyOrNotAvailableYet) {
  EXPECT_EQ(error_of("[training]\nmixed_precision_param = \"bfloat16\"\n"),
            "run.toml:2:1: training.mixed_precision_param: unknown key; use precision.compute");
  EXPECT_EQ(
      error_of("[checkpoint]\nlast_save_model_only = true\n"),
      "run.toml:2:1: checkpoint.last_save_model_only: unknown key; not available yet: checkpoints hold all "
      "that a resume needs");
  EXPECT_EQ(error_of("[parallelism]\ncontext_parallel_rotate_method = \"alltoall\"\n"),
            "run.toml:2:1: parallelism.context_parallel_rotate_method: unknown key; use "
            "parallelism.context_parallel_method (\"allgather\", \"ring\", \"ulysses\" or \"hybrid\")");
  EXPECT_EQ(error_of("", {"gradient_accumulation_steps=4"}),
            "command line: gradient_accumulation_steps: unknown section or key; use "
            "training.global_batch_size (local_batch_size x ranks x accumulation steps)");
  EXPECT_EQ(error_of("", {"--micro-batch-size=4"}),
            "command line: micro-batch-size: unknown section or key; use training.local_batch_size");
}

TEST(ForeignKeys, SuggestionsAreFromTheSameSection) {
  EXPECT_FALSE(contains(error_of("[model]\nname = \"llama3\"\n"), "optimizer.name"));
  EXPECT_FALSE(contains(error_of("[training]\ncompile = true\n"), "precision.compute"));
  EXPECT_FALSE(contains(error_of("[checkpoint]\nkeep = 3\n"), "data.seed"));
  EXPECT_EQ(
      error_of("[debug]\nworkers = 3\n"),
      "run.toml:2:1: debug.workers: unknown key; known keys: print_config, prove_layout, check_copies_freq, "
      "plant_nan_step, plant_nan_block");
}

bool exists_here(std::string_view name) {
  Config scratch;
  return find_field(config_schema(), &scratch, name).field != nullptr;
}

/// All rows of all tables, with the name of the table.
std::vector<std::pair<std::string, const ForeignKey*>> all_rows() {
  std::vector<std::pair<std::string, const ForeignKey*>> rows;
  for (const ForeignTrainer* trainer : foreign_trainers())
    for (const ForeignKey& key : trainer->keys) rows.emplace_back(trainer->name, &key);
  for (const ForeignKey& key : common_foreign_words()) rows.emplace_back("common", &key);
  return rows;
}

TEST(ForeignKeys, EveryEntryIsUniqueAndNamesAnExistingField) {
  std::set<std::pair<std::string, std::string_view>> seen;
  for (const auto& [table, key] : all_rows()) {
    const std::string place = format("{}: {}", table, key->name);
    EXPECT_TRUE(seen.emplace(table, key->name).second) << place << " is listed twice";
    EXPECT_TRUE(key->ours.empty() || exists_here(key->ours)) << place << " -> " << key->ours;
    const bool sets = key->rule != ForeignRule::lost && key->rule != ForeignRule::refused &&
                      key->rule != ForeignRule::needless && key->rule != ForeignRule::read;
    EXPECT_TRUE(!sets || !key->ours.empty()) << place;
    EXPECT_TRUE(key->rule != ForeignRule::when_true || !key->fixed.empty()) << place;
  }
}

TEST(ForeignKeys, NothingThatExistsHereIsCalledMissing) {
  for (const auto& [table, key] : all_rows()) {
    if (!key->note.starts_with("not available yet") && key->rule != ForeignRule::refused) continue;
    const std::string place = format("{}: {}", table, key->name);
    EXPECT_FALSE(exists_here(key->name)) << place;
    const std::string_view last = key->name.substr(key->name.rfind('.') + 1);
    for (const Field& section : config_schema().fields()) {
      const bool has_it = section.type == FieldType::table && section.table->find(last) != nullptr;
      EXPECT_FALSE(has_it && key->ours.empty() && last != "enable")
          << place << ": " << section.name << " has it";
    }
  }
}

TEST(ForeignKeys, EveryDefaultOfAPeerIsAValueOfOurField) {
  for (const ForeignTrainer* trainer : foreign_trainers()) {
    for (const ForeignDefault& theirs : trainer->defaults) {
      const std::string setting = format("{}={}", theirs.ours, theirs.value);
      const std::string error = error_of("", {setting});
      EXPECT_FALSE(contains(error, "expected") || contains(error, "unknown"))
          << trainer->name << ": " << error;
    }
  }
}

TEST(ForeignKeys, WordsOfOtherTrainersAreAnswered) {
  const std::map<std::string, std::string> words{
      {"model_name_or_path", "use model.from"},
      {"model.path", "use model.from"},
      {"load_from", "use model.from"},
      {"base_model", "use model.from"},
      {"warmup_ratio", "use lr_scheduler.warmup_ratio"},
      {"betas", "use optimizer.beta1 (and optimizer.beta2)"},
      {"parallelism.tp_size", "use parallelism.tensor_parallel_degree"},
      {"parallelism.sp_size", "use parallelism.context_parallel_degree"},
      {"parallelism.ep_size", "use parallelism.expert_parallel_degree"},
      {"sequence_len", "use training.seq_len"},
      {"num_epochs", "use training.epochs"},
      {"val_set_size", "use data.validation_fraction"},
      {"sample_packing", "use data.packing"},
      {"n_layer", "use model.n_layers"},
      {"n_embd", "use model.dim"},
      {"block_size", "use training.seq_len"},
      {"max_iters", "use training.steps"},
      {"tp", "use parallelism.tensor_parallel_degree"},
      {"training.use_lora", "use adapter.type"},
      {"activation_checkpoint.enable", "use activation_checkpoint.mode"},
      {"world_size", "stepforge launch --nproc N"},
      {"early_stopping_patience", "use training.early_stopping.patience"},
      {"--hidden-size", "use model.dim"},
  };
  for (const auto& [word, answer] : words) EXPECT_CONTAINS(foreign_hint(word), answer) << word;
}

}  // namespace
}  // namespace stepforge::testing
