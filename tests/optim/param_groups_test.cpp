// SPDX-License-Identifier: Apache-2.0
#include "stepforge/optim/param_groups.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "tests/nn/tiny_model.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

ModelSpec tiny_spec() {
  return model_spec(tiny_config());
}

/// The group of each parameter, by name.
std::map<std::string, ParamGroup> groups_by_parameter(const OptimizerConfig& optimizer,
                                                      const ModelSpec& spec) {
  const ParamGroups groups = resolve_param_groups(optimizer, spec);
  std::map<std::string, ParamGroup> result;
  for (size_t u = 0; u < spec.units.size(); ++u) {
    for (size_t i = 0; i < spec.units[u].parameters.size(); ++i) {
      for (const ParamInterval& interval : groups.intervals[u]) {
        if (interval.first <= i && i < interval.last) {
          result[spec.units[u].parameters[i].name] = groups.groups.at(static_cast<size_t>(interval.group));
        }
      }
    }
  }
  return result;
}

TEST(ParamGroups, EveryParameterIsInExactlyOneIntervalAndIntervalsAreSorted) {
  OptimizerConfig optimizer;
  optimizer.param_groups = {{"qkv", 1e-4}};
  const ModelSpec spec = tiny_spec();
  const ParamGroups groups = resolve_param_groups(optimizer, spec);
  size_t parameters = 0;
  for (size_t u = 0; u < spec.units.size(); ++u) {
    parameters += spec.units[u].parameters.size();
    size_t last = 0;
    for (const ParamInterval& interval : groups.intervals[u]) {
      EXPECT_LE(last, interval.first);
      EXPECT_LT(interval.first, interval.last);
      last = interval.last;
    }
  }
  EXPECT_EQ(groups_by_parameter(optimizer, spec).size(), parameters);
}

TEST(ParamGroups, NormsDoNotDecayByDefault) {
  OptimizerConfig optimizer;
  optimizer.weight_decay = 0.3;
  auto groups = groups_by_parameter(optimizer, tiny_spec());
  EXPECT_EQ(groups.at("layers.0.attention.norm").options.weight_decay, 0.0);
  EXPECT_EQ(groups.at("head.norm").options.weight_decay, 0.0);
  EXPECT_EQ(groups.at("layers.0.attention.qkv").options.weight_decay, 0.3);
  EXPECT_EQ(groups.at("embedding.weight").options.weight_decay, 0.3);
  optimizer.decay_all = true;
  groups = groups_by_parameter(optimizer, tiny_spec());
  EXPECT_EQ(groups.at("layers.0.attention.norm").options.weight_decay, 0.3);
}

TEST(ParamGroups, TheFirstPatternThatMatchesWins) {
  OptimizerConfig optimizer;
  optimizer.lr = 1e-3;
  optimizer.param_groups = {{"^layers\\.1\\.", 2e-3}, {"mlp", 3e-3, 0.05, 0.7, 0.8}};
  const auto groups = groups_by_parameter(optimizer, tiny_spec());
  EXPECT_EQ(groups.at("layers.1.mlp.down").options.lr, 2e-3);
  EXPECT_EQ(groups.at("layers.1.mlp.down").name, "^layers\\.1\\.");
  EXPECT_EQ(groups.at("layers.0.mlp.down").options.lr, 3e-3);
  EXPECT_EQ(groups.at("layers.0.mlp.down").options.weight_decay, 0.05);
  EXPECT_EQ(groups.at("layers.0.mlp.down").options.beta1, 0.7);
  EXPECT_EQ(groups.at("layers.0.mlp.down").options.beta2, 0.8);
  EXPECT_EQ(groups.at("layers.0.mlp.norm").options.weight_decay, 0.05)
      << "a group's weight_decay applies to norms too";
  EXPECT_EQ(groups.at("layers.0.attention.out").options.lr, 1e-3);
  EXPECT_EQ(groups.at("layers.1.attention.norm").options.weight_decay, 0.0)
      << "a group without weight_decay keeps the default of the tag";
}

TEST(ParamGroups, AParameterMayLearnFasterThanItsGroup) {
  OptimizerConfig optimizer;
  optimizer.lr = 1e-3;
  optimizer.param_groups = {{"mlp.*", 1e-4}};
  AdapterConfig adapter;
  adapter.type = AdapterType::lora;
  adapter.b_lr_ratio = 16;
  const auto groups = groups_by_parameter(optimizer, with_adapters(tiny_spec(), adapter));
  EXPECT_EQ(groups.at("layers.0.attention.out.lora_A").options.lr, 1e-3);
  EXPECT_EQ(groups.at("layers.0.attention.out.lora_B.weight").options.lr, 16 * 1e-3);
  EXPECT_EQ(groups.at("layers.0.mlp.down.lora_B.weight").options.lr, 16 * 1e-4);
}

TEST(ParamGroups, APatternThatMatchesNothingIsAnError) {
  OptimizerConfig optimizer;
  optimizer.param_groups = {{"experts", 1e-4}};
  const std::string message = message_of<UsageError>([&] { resolve_param_groups(optimizer, tiny_spec()); });
  EXPECT_CONTAINS(message, "\"experts\"");
  EXPECT_CONTAINS(message, "head.");
}

TEST(ParamGroups, APatternWhoseParametersAllMatchEarlierOnesIsAnError) {
  OptimizerConfig optimizer;
  optimizer.param_groups = {{"mlp", 1e-4}, {"mlp\\.down", 1e-4}};
  EXPECT_CONTAINS(message_of<UsageError>([&] { resolve_param_groups(optimizer, tiny_spec()); }),
                  "mlp\\.down");
}

TEST(ParamGroups, APatternThatIsNotARegularExpressionIsAnError) {
  OptimizerConfig optimizer;
  optimizer.param_groups = {{"layers.(0", 1e-4}};
  const std::string message = message_of<UsageError>([&] { resolve_param_groups(optimizer, tiny_spec()); });
  EXPECT_CONTAINS(message, "layers.(0");
  EXPECT_CONTAINS(message, "not a regular expression");
}

TEST(ParamGroups, AFrozenUnitHasNoIntervals) {
  ModelSpec spec = tiny_spec();
  spec.units[1].trainable = false;
  EXPECT_TRUE(resolve_param_groups({}, spec).intervals[1].empty());
  EXPECT_FALSE(resolve_param_groups({}, spec).intervals[2].empty());
}

TEST(ParamGroups, OfARankOfAPipelineAreThoseOfTheWholeModel) {
  const ModelSpec whole = tiny_spec();
  OptimizerConfig optimizer;
  optimizer.param_groups = {{"embedding", 1e-4}, {"layers\\.1", 1e-5}};
  const ParamGroups of_whole = resolve_param_groups(optimizer, whole);
  // No pattern matches a parameter of the last unit.
  const std::vector<UnitSpec> last = {whole.units.back()};
  const ParamGroups of_last = resolve_param_groups(optimizer, whole, last);
  EXPECT_EQ(of_last.groups, of_whole.groups);
  ASSERT_EQ(of_last.intervals.size(), 1U);
  ASSERT_EQ(of_last.intervals[0].size(), of_whole.intervals.back().size());
  for (size_t i = 0; i < of_last.intervals[0].size(); ++i)
    EXPECT_EQ(of_last.intervals[0][i].group, of_whole.intervals.back()[i].group);
  EXPECT_CONTAINS(message_of<Error>([&] { resolve_param_groups(optimizer, whole, {{"layers.9", {}}}); }),
                  "no unit \"layers.9\"");
}

}  // namespace
}  // namespace stepforge::testing
