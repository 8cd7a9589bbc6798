// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/unread_options.h"

#include <filesystem>
#include <map>
#include <set>

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

TEST(UnreadOptions, ADispatcherNeedsExpertsThatAreSpread) {
  const std::string chosen = "parallelism.expert_parallel_dispatcher=allgather";
  EXPECT_EQ(refusal_of("", {chosen}),
            "command line: parallelism.expert_parallel_dispatcher = \"allgather\": "
            "with parallelism.expert_parallel_degree = 1 it is not read; remove it");
  EXPECT_EQ(refusal_of("", {chosen, "parallelism.expert_parallel_degree=2"}), "");
  EXPECT_EQ(refusal_of("", {chosen, "parallelism.expert_tensor_parallel_degree=2",
                            "parallelism.tensor_parallel_degree=2"}),
            "");
  EXPECT_EQ(refusal_of("", {"parallelism.expert_parallel_dispatcher=alltoall"}), "");
}

TEST(UnreadOptions, AreRefusedWithTheirPlaceAndWhatDoesNotReadThem) {
  EXPECT_EQ(
      refusal_of("[optimizer]\nmomentum = 0.5\n"),
      "run.toml:2:12: optimizer.momentum = 0.5: with optimizer.name = \"adamw\" it is not read; remove it");
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
