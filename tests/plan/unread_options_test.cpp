// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/unread_options.h"

#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/lr_schedule.h"
#include "stepforge/catalog/optimizer_kinds.h"
#include "stepforge/config/schema.h"
#include "stepforge/config/schema_docs.h"
#include "tests/support/strings.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/support/write_text.h"

namespace stepforge::testing {
namespace {

/// The refusal of a file's text with settings; "" if there is none.
std::string refusal_of(const std::string& text, const Strings& settings = {},
                       const std::shared_ptr<Registry>& registry = nullptr) {
  try {
    refuse_unread_options(parse_config(text, "run.toml", settings, ConfigUse::inspect, {}, registry));
  } catch (const UsageError& refusal) {
    return refusal.what();
  }
  return "";
}

/// The options that are named at the start of a job on `ranks` ranks of one host.
Strings notes_of(const std::string& text, const Strings& settings = {}, int ranks = 1) {
  const LoadedConfig loaded = parse_config(text, "run.toml", settings);
  EXPECT_NO_THROW(refuse_unread_options(loaded));
  return unread_notes(loaded, {ranks, ranks});
}

TEST(UnreadOptions, EveryFieldOfTheSchemaHasRules) {
  std::set<std::string> fields;
  const std::function<void(const TableSchema&, const std::string&)> collect = [&](const TableSchema& schema,
                                                                                  const std::string& table) {
    for (const Field& field : schema.fields()) {
      const std::string name = table.empty() ? field.name : table + "." + field.name;
      if (field.type != FieldType::table) fields.insert(name);
      if (field.table == nullptr || field.is_recursive) continue;
      collect(*field.table, field.type == FieldType::tables ? name + "[]" : name);
    }
  };
  collect(config_schema(), "");
  std::set<std::string> always;
  std::set<std::string> sometimes;
  for (const OptionRule& rule : option_rules()) {
    std::istringstream options{std::string(rule.options)};
    for (std::string option; options >> option;) {
      const std::string name = rule.table.empty() ? option : format("{}.{}", rule.table, option);
      EXPECT_TRUE(fields.contains(name)) << name << " is no field";
      if (rule.reads == nullptr) {
        EXPECT_TRUE(always.insert(name).second) << name << " has two rules that always read it";
      } else {
        sometimes.insert(name);
        EXPECT_NE(rule.choosers.empty(), rule.reason.empty()) << name;
      }
    }
  }
  for (const std::string& name : fields)
    EXPECT_NE(always.contains(name), sometimes.contains(name)) << name << " is read: when?";
}

TEST(UnreadOptions, ThatAnotherChoiceExcludesAreRefused) {
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"activation_checkpoint.every_n=3", "activation_checkpoint.mode = \"none\""},
      {"activation_checkpoint.blocks=[1]", "activation_checkpoint.mode = \"none\""},
      {"activation_checkpoint.memory_budget=0.3", "activation_checkpoint.mode = \"none\""},
      {"activation_checkpoint.regions=mlp", "activation_checkpoint.mode = \"none\""},
      {"parallelism.fsdp_reshard_every_n=3", "parallelism.fsdp_reshard_after_forward = \"default\""},
      {"checkpoint.initial_load_model_only=false", "checkpoint.initial_load_path = \"\""},
      {"training.max_skipped=3", "training.nonfinite = \"stop\""},
      {"data.max_bad_records=3", "data.on_bad_record = \"stop\""},
      {"data.preset=rows", "data.packing = \"concat\""},
      {"tokenizer.min_frequency=3", "tokenizer.type = \"bytes\""},
      {"tokenizer.train_bytes=300", "tokenizer.type = \"bytes\""},
      {"tokenizer.vocab_size=300", "tokenizer.type = \"bytes\""}};
  for (const auto& [setting, cause] : refused)
    EXPECT_CONTAINS(refusal_of("", {setting}), setting.substr(0, setting.find('=')), cause, "is not read");
  const std::vector<Strings> pairs = {
      {"comm.backend=shared_memory", "comm.interface=eth9"},
      {"metrics.status_line=off", "metrics.smoothing=0.5"},
      {"sampling.freq=2", "sampling.temperature=0", "sampling.top_k=4"},
      {"checkpoint.resume=false", "checkpoint.load_step=3"},
      {"checkpoint.enable=false", "adapter.type=lora", "adapter.svd_iterations=3"},
      {"checkpoint.enable=false", "adapter.type=lora", "adapter.experts=shared_a"},
      {"training.callbacks=[\"logging\"]", "sampling.freq=2"},
      {"training.callbacks=[\"logging\"]", "checkpoint.last_save_in_hf=true"},
      {"parallelism.context_parallel_degree=4", "parallelism.ulysses_degree=4"},
      {"tokenizer.type=hf", "tokenizer.path=x", "tokenizer.pattern=gpt2"}};
  for (const Strings& settings : pairs)
    EXPECT_CONTAINS(refusal_of("", settings), settings.back().substr(0, settings.back().find('=')),
                    "is not read; remove it, or change ");
}

TEST(UnreadOptions, ThatTheNumberOfRanksDecidesAreNamed) {
  const Strings settings = {"precision.reduce=bf16",
                            "parallelism.fsdp_partition=by_dim",
                            "comm.interface=eth9",
                            "training.loss_aggregation=rank_average",
                            "debug.check_copies_freq=2",
                            "parallelism.fsdp_reduce_each_micro_batch=true",
                            "comm.train_timeout=9",
                            "parallelism.fsdp_prefetch_lists=[{unit = \"head\", "
                            "forward = [\"embedding\"]}]"};
  const Strings notes = notes_of("", settings);
  ASSERT_EQ(notes.size(), 2U) << join(notes, "\n");
  EXPECT_TRUE(notes[0].starts_with("not read on one rank: training.loss_aggregation = \"rank_average\", "));
  for (const std::string& setting : settings)
    EXPECT_CONTAINS(join(notes, "\n"), setting.substr(0, setting.find('=')));
  EXPECT_EQ(notes_of("", settings, 2),
            Strings{"not read with all ranks on one host in shared memory: comm.interface = \"eth9\""});
  EXPECT_EQ(unread_notes(parse_config("", "", settings), {2, 1}), Strings{});
  EXPECT_EQ(unread_notes(parse_config("", "", settings), {}), Strings{}) << "not known yet";
  EXPECT_EQ(notes_of("", {"parallelism.fsdp_cpu_offload=true", "parallelism.fsdp_forward_prefetch=2"}),
            Strings{});
}

TEST(UnreadOptions, ThatAreOfAnotherLayoutAreNamed) {
  const Strings settings = {"parallelism.enable_async_tensor_parallel=true",
                            "parallelism.disable_loss_parallel=true",
                            "parallelism.tensor_parallel_plan=[{pattern = \"mlp\"}]",
                            "parallelism.context_parallel_method=ring",
                            "parallelism.context_parallel_load_balance=none",
                            "parallelism.ulysses_degree=4",
                            "parallelism.pipeline_parallel_schedule=GPipe",
                            "parallelism.pipeline_parallel_microbatch_size=1"};
  const std::string notes = join(notes_of("", settings), "\n");
  for (const std::string& setting : settings) EXPECT_CONTAINS(notes, setting.substr(0, setting.find('=')));
  EXPECT_EQ(notes_of("", {"parallelism.pipeline_parallel_schedule=Interleaved1F1B"}), Strings{})
      << "one rank may have several stages";
}

TEST(UnreadOptions, ThatASwitchTurnsOffAreNamed) {
  EXPECT_EQ(
      notes_of("", {"checkpoint.enable=false", "checkpoint.interval=7", "checkpoint.async=false"}),
      Strings{"not read with checkpoint.enable = false: checkpoint.interval = 7, checkpoint.async = false"});
  EXPECT_EQ(notes_of("", {"validation.steps=7"}),
            Strings{"not read with validation.freq = 0: validation.steps = 7"});
  EXPECT_EQ(notes_of("", {"sampling.prompt=Once", "sampling.top_k=4"}),
            Strings{"not read with sampling.freq = 0: sampling.prompt = \"Once\", sampling.top_k = 4"});
  const TempFolder folder;
  const std::string run = "run_dir=" + (folder / "run").string();
  EXPECT_EQ(notes_of("", {run, "checkpoint.load.optimizer=false", "checkpoint.strict=false"}).size(), 2U);
  EXPECT_EQ(notes_of("", {run, "checkpoint.load.optimizer=false", "checkpoint.strict=false",
                          "checkpoint.initial_load_path=x", "checkpoint.initial_load_model_only=false"}),
            Strings{});
}

TEST(UnreadOptions, OfTheDataFollowFromTheKindsOfItsSources) {
  const auto with = [](const std::string& sources, const std::string& setting) {
    return join(notes_of("", {format("data.sources=[{}]", sources), setting}), "\n");
  };
  const std::string made = "{format = \"synthetic\"}";
  const std::string book = "{path = \"a.txt\"}";
  const std::string lines = "{path = \"a.jsonl\"}";
  const std::string finished = "{path = \"a.bin\"}";
  const std::string chat = "{path = \"a.jsonl\", format = \"messages\"}";
  for (const std::string setting : {"data.deduplicate=true", "data.filter.min_words=3", "data.cache_dir=c"}) {
    EXPECT_CONTAINS(with(made, setting), setting.substr(0, setting.find('=')));
    EXPECT_CONTAINS(with(finished, setting), setting.substr(0, setting.find('=')));
    for (const std::string& read : {book, lines, chat, made + ", " + book})
      EXPECT_EQ(with(read, setting), "");
    EXPECT_EQ(notes_of("", {setting}), Strings{}) << "no sources yet";
  }
  EXPECT_EQ(with(book, "data.document=line"), "");
  EXPECT_EQ(with("{path = \"folder\"}", "data.document=line"), "");
  for (const std::string& other : {made, lines, finished, chat})
    EXPECT_CONTAINS(with(other, "data.document=line"), "data.document");
  EXPECT_CONTAINS(with(chat, "data.eos=false"), "data.eos");
  EXPECT_EQ(with(lines, "data.eos=false"), "");
  EXPECT_CONTAINS(with(book, "data.synthetic_tokens=99"), "data.synthetic_tokens");
  EXPECT_EQ(with(made, "data.synthetic_tokens=99"), "");
  EXPECT_CONTAINS(with("{path = \"a.txt\", format = \"text\", field = \"body\"}", "data.shuffle=false"),
                  "not read with data.sources.0.format = \"text\"", "data.sources.0.field = \"body\"");
}

TEST(UnreadOptions, OfAFileThatTheCommandLineTurnsOffAreNamed) {
  const std::string file = "[optimizer]\nname = \"sgd\"\nmomentum = 0.5\n";
  EXPECT_EQ(notes_of(file, {"optimizer.name=adamw"}),
            Strings{"not read with optimizer.name = \"adamw\": optimizer.momentum = 0.5"});
  EXPECT_CONTAINS(refusal_of(file, {"optimizer.name=adamw", "optimizer.momentum=0.4"}), "optimizer.momentum");
}

TEST(UnreadOptions, ADispatcherNeedsExpertsThatAreSpread) {
  const std::string chosen = "parallelism.expert_parallel_dispatcher=allgather";
  EXPECT_EQ(notes_of("", {chosen}), Strings{"not read with parallelism.expert_parallel_degree = 1: "
                                            "parallelism.expert_parallel_dispatcher = \"allgather\""});
  EXPECT_EQ(notes_of("", {chosen, "parallelism.expert_parallel_degree=2"}), Strings{});
  EXPECT_EQ(notes_of("", {chosen, "parallelism.expert_tensor_parallel_degree=2",
                          "parallelism.tensor_parallel_degree=2"}),
            Strings{});
  EXPECT_EQ(notes_of("", {"parallelism.expert_parallel_dispatcher=alltoall"}), Strings{});
}

TEST(UnreadOptions, AreRefusedWithTheirPlaceAndWhatDoesNotReadThem) {
  EXPECT_EQ(refusal_of("[optimizer]\nmomentum = 0.5\n"),
            "run.toml:2:12: optimizer.momentum = 0.5: with optimizer.name = \"adamw\" it is not read; "
            "remove it, or change optimizer.name");
  EXPECT_CONTAINS(refusal_of("", {"optimizer.name=sgd", "optimizer.beta1=0.8"}),
                  "command line: optimizer.beta1 = 0.8: with optimizer.name = \"sgd\"");
  EXPECT_CONTAINS(refusal_of("", {"optimizer.name=lion", "optimizer.eps=1e-6"}), "optimizer.eps");
  EXPECT_CONTAINS(refusal_of("", {"lr_scheduler.cycles=3"}), "lr_scheduler.decay_type = \"linear\"");
  EXPECT_CONTAINS(refusal_of("", {"lr_scheduler.decay_type=cosine", "lr_scheduler.power=3"}),
                  "lr_scheduler.power = 3.0");
  EXPECT_CONTAINS(
      refusal_of("", {"optimizer.name=sgd", "optimizer.param_groups=[{pattern = \"head\", beta2 = 0.5}]"}),
      "optimizer.param_groups.0.beta2");
}

TEST(UnreadOptions, OfAScheduleAreNamedWithWhatReplacesThem) {
  const std::string warmup =
      refusal_of("", {"lr_scheduler.warmup_steps=10", "lr_scheduler.warmup_ratio=0.25"});
  EXPECT_CONTAINS(warmup, "lr_scheduler.warmup_steps = 10: with lr_scheduler.warmup_ratio = 0.25");
  EXPECT_EQ(refusal_of("", {"lr_scheduler.warmup_steps=10"}), "");
  EXPECT_EQ(refusal_of("", {"lr_scheduler.warmup_ratio=0"}), "");
  for (const std::string option : {"min_lr_factor", "decay_ratio"}) {
    const std::string setting = format("lr_scheduler.{}=0.5", option);
    EXPECT_CONTAINS(refusal_of("", {"lr_scheduler.decay_type=constant", setting}),
                    format("lr_scheduler.{} = 0.5: with lr_scheduler.decay_type = \"constant\"", option));
    EXPECT_EQ(refusal_of("", {setting}), "");
  }
}

TEST(UnreadOptions, OfARotaryTypeAreThoseOfOtherTypes) {
  const std::map<std::string, std::string> values = {{"factor", "4"},
                                                     {"low_freq_factor", "2"},
                                                     {"high_freq_factor", "8"},
                                                     {"original_max_position", "64"},
                                                     {"attention_factor", "1.5"},
                                                     {"beta_fast", "16"},
                                                     {"beta_slow", "2"},
                                                     {"mscale", "0.5"},
                                                     {"mscale_all_dim", "0.5"},
                                                     {"truncate", "false"},
                                                     {"short_factor", "[1.5]"},
                                                     {"long_factor", "[2.5]"}};
  const std::map<std::string, std::set<std::string>> read = {
      {"none", {}},
      {"linear", {"factor"}},
      {"dynamic", {"factor"}},
      {"llama3", {"factor", "low_freq_factor", "high_freq_factor", "original_max_position"}},
      {"yarn",
       {"factor", "original_max_position", "attention_factor", "beta_fast", "beta_slow", "mscale",
        "mscale_all_dim", "truncate"}},
      {"longrope", {"factor", "original_max_position", "attention_factor", "short_factor", "long_factor"}}};
  EXPECT_EQ(values.size() + 1,
            config_schema().find("model")->table->find("rope_scaling")->table->fields().size());
  for (const auto& [type, options] : read) {
    for (const auto& [option, value] : values) {
      const std::string refusal = refusal_of(
          "", {"model.rope_scaling.type=" + type, format("model.rope_scaling.{}={}", option, value)});
      if (options.contains(option))
        EXPECT_EQ(refusal, "") << type << ", " << option;
      else
        EXPECT_CONTAINS(refusal, format("model.rope_scaling.{} = ", option),
                        format("with model.rope_scaling.type = \"{}\"", type));
    }
  }
  EXPECT_EQ(refusal_of("", {"preset=llama3.1-8b", "model.rope_scaling.type=none"}), "")
      << "those of a preset";
}

TEST(UnreadOptions, AreNotThoseThatAreRead) {
  EXPECT_EQ(refusal_of("", {"optimizer.beta1=0.8", "optimizer.eps=1e-6"}), "");
  EXPECT_EQ(refusal_of("", {"optimizer.name=sgd", "optimizer.momentum=0", "optimizer.nesterov=false"}), "");
  EXPECT_EQ(refusal_of("", {"optimizer.name=muon", "optimizer.momentum=0.9", "optimizer.muon_scale=spectral",
                            "optimizer.beta1=0.8", "optimizer.eps=1e-6"}),
            "")
      << "adamw updates what muon does not take";
  EXPECT_EQ(refusal_of("", {"lr_scheduler.decay_type=polynomial", "lr_scheduler.power=3"}), "");
  EXPECT_EQ(refusal_of("", {"optimizer.name=sgd",
                            "optimizer.param_groups=[{pattern = \"head\", lr = 0.1, weight_decay = 0}]"}),
            "");
}

TEST(UnreadOptions, AreNotThoseThatTheUserHasNotChanged) {
  EXPECT_EQ(refusal_of("[optimizer]\nmomentum = 0.95\n"), "") << "the default";
  const TempFolder folder;
  Config config;
  config.run_dir = (folder / "run").string();
  config.optimizer.momentum = 0.5;
  std::filesystem::create_directories(folder / "run");
  write_text(folder / "run" / "config.toml", config_toml(config));
  const auto load = [&](const std::filesystem::path& file, const Strings& settings) {
    refuse_unread_options(load_config(file, settings));
  };
  EXPECT_NO_THROW(load(folder / "run" / "config.toml", {})) << "a run has written all fields";
  EXPECT_CONTAINS(
      message_of<UsageError>([&] { load(folder / "run" / "config.toml", {"optimizer.momentum=0.4"}); }),
      "command line: optimizer.momentum = 0.4");
  std::filesystem::rename(folder / "run" / "config.toml", folder / "run" / "mine.toml");
  EXPECT_CONTAINS(message_of<UsageError>([&] { load(folder / "run" / "mine.toml", {}); }),
                  "optimizer.momentum = 0.5");
}

TEST(UnreadOptions, OfAPluginAreThoseThatItDoesNotDeclare) {
  const auto registry = std::make_shared<Registry>();
  registry->add(OptimizerKind{.name = "mine", .reads = "beta2 eps"});
  registry->add(DecayKind{.name = "own", .factor = [](const DecayStep&) { return 1.0; }, .reads = "power"});
  const Strings names = {"optimizer.name=mine", "lr_scheduler.decay_type=own"};
  const auto with = [&](const Strings& settings) {
    Strings all = names;
    all.insert(all.end(), settings.begin(), settings.end());
    return refusal_of("", all, registry);
  };
  EXPECT_EQ(with({"optimizer.beta2=0.5", "optimizer.eps=1e-6", "lr_scheduler.power=3", "optimizer.lr=0.1"}),
            "");
  EXPECT_CONTAINS(with({"optimizer.beta1=0.5", "lr_scheduler.cycles=3"}), "optimizer.beta1 = 0.5",
                  "lr_scheduler.cycles = 3");
}

}  // namespace
}  // namespace stepforge::testing
