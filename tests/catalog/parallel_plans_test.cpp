// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/parallel_plans.h"

#include <gtest/gtest.h>

#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/config/config_section.h"
#include "stepforge/config/load.h"
#include "tests/support/strings.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

using Rules = std::vector<TensorPlanRule>;

/// The configuration of a model whose plan has these rules.
Config planned(Rules (*rules)(const Config&), const Strings& settings = {}) {
  auto registry = std::make_shared<Registry>();
  registry->add(ParallelPlanKind{.name = "mine", .tensor_rules = rules});
  Strings all = {"parallelism.plan=mine", "parallelism.tensor_parallel_degree=2", "model.vocab_size=64"};
  all.insert(all.end(), settings.begin(), settings.end());
  return parse_config("", "run.toml", all, ConfigUse::inspect, {}, registry).config;
}

Rules whole_mlp(const Config&) {
  return {{"mlp", TensorStyle::replicate}};
}

TEST(ParallelPlan, OfAPluginDecidesWhatItNames) {
  const TensorPlan plan = tensor_plan(planned(whole_mlp));
  EXPECT_EQ(plan.style_of("layers.0.mlp.down"), TensorStyle::replicate);
  EXPECT_EQ(plan.style_of("layers.0.attention.out"), TensorStyle::rowwise);
  EXPECT_EQ(tensor_plan(Config()).style_of("layers.0.mlp.down"), TensorStyle::rowwise);
}

TEST(ParallelPlan, RulesOfTheUserComeFirst) {
  const Config config = planned(
      whole_mlp,
      {R"toml(parallelism.tensor_parallel_plan=[{pattern = "layers.0.mlp.(gate_up|down)", style = "colwise"}])toml"});
  EXPECT_EQ(tensor_plan(config).style_of("layers.0.mlp.gate_up"), TensorStyle::colwise);
  EXPECT_EQ(tensor_plan(config).style_of("layers.1.mlp.gate_up"), TensorStyle::replicate);
}

TEST(ParallelPlan, MayNameParametersThatTheModelDoesNotHave) {
  const Config config = planned([](const Config&) { return Rules{{"sinks", TensorStyle::replicate}}; });
  EXPECT_NO_THROW(model_spec(config.model, 0, {0, 2, true}, {}, tensor_plan(config)));
}

TEST(ParallelPlan, SeesTheConfiguration) {
  const auto by_heads = [](const Config& config) {
    return config.model.n_kv_heads == 2 ? whole_mlp(config) : Rules();
  };
  EXPECT_EQ(tensor_plan(planned(by_heads)).style_of("layers.0.mlp.down"), TensorStyle::rowwise);
  EXPECT_EQ(tensor_plan(planned(by_heads, {"model.n_kv_heads=2"})).style_of("layers.0.mlp.down"),
            TensorStyle::replicate);
}

TEST(ParallelPlan, IsNamedInWhatItIsRefusedFor) {
  const auto refusal = [](Rules (*rules)(const Config&)) {
    return message_of<UsageError>([&] {
      const Config config = planned(rules);
      model_spec(config.model, 0, {0, 2, true}, {}, tensor_plan(config));
    });
  };
  EXPECT_CONTAINS(refusal([](const Config&) { return Rules{{"(", TensorStyle::replicate}}; }),
                  "parallelism.plan = \"mine\": pattern \"(\"");
  EXPECT_CONTAINS(refusal([](const Config&) { return Rules{{"mlp.down", TensorStyle::replicate}}; }),
                  "parallelism.plan = \"mine\": layers.0.mlp.gate_up and layers.0.mlp.down form one layer");
  EXPECT_CONTAINS(refusal([](const Config&) { return Rules{{"mlp", TensorStyle::rowwise}}; }),
                  "parallelism.plan = \"mine\": layers.0.mlp.gate_up cannot be rowwise");
}

}  // namespace
}  // namespace stepforge::testing
