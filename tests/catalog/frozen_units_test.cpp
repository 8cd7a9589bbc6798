// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/frozen_units.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/catalog/decoder_spec.h"
#include "tests/catalog/all_families.h"
#include "tests/support/strings.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

/// The names of the frozen units of a model with 11 layers.
Strings frozen_by(const Strings& patterns) {
  ModelConfig model;
  model.n_layers = 11;
  model.vocab_size = 256;
  model.freeze = patterns;
  Strings names;
  for (const UnitSpec& unit : model_spec(model).units) {
    if (!unit.trainable) names.push_back(unit.name);
  }
  return names;
}

TEST(FrozenUnits, AreThoseWhoseNameOrParametersMatchAsAWhole) {
  EXPECT_EQ(frozen_by({}), Strings{});
  EXPECT_EQ(frozen_by({"embedding"}), Strings{"embedding"});
  EXPECT_EQ(frozen_by({"layers.1"}), Strings{"layers.1"}) << "not layers.10";
  EXPECT_EQ(frozen_by({"layers\\.1\\..*"}), Strings{"layers.1"});
  EXPECT_EQ(frozen_by({"embedding", "layers\\.[0-2]"}),
            (Strings{"embedding", "layers.0", "layers.1", "layers.2"}));
  EXPECT_EQ(frozen_by({"layers\\.3\\.attention\\..*", "layers\\.3\\.mlp\\..*"}), Strings{"layers.3"});
}

/// Those of the unit `name`.
Strings parameters_of(const ModelSpec& model, const std::string& name) {
  Strings names;
  for (const UnitSpec& unit : model.units)
    if (unit.name == name)
      for (const ParameterSpec& parameter : unit.parameters) names.push_back(parameter.name);
  return names;
}

Strings units_of(const ModelSpec& model, const std::string& block) {
  Strings names;
  for (const int unit : std::ranges::find(model.blocks, block, &BlockSpec::name)->units)
    names.push_back(model.units.at(static_cast<size_t>(unit)).name);
  return names;
}

ModelSpec frozen_model(const Strings& patterns) {
  ModelConfig model;
  model.n_layers = 2;
  model.vocab_size = 256;
  model.freeze = patterns;
  model.frozen_dtype = FrozenDType::bf16;
  return model_spec(model);
}

TEST(FrozenUnits, AUnitWithFrozenAndTrainedParametersBecomesTwo) {
  const Strings norms{"layers.0.attention.norm", "layers.0.mlp.norm"};
  const ModelSpec model = frozen_model({"layers\\.0\\..*norm"});
  EXPECT_EQ(parameters_of(model, "layers.0.frozen"), norms);
  EXPECT_EQ(parameters_of(model, "layers.0"), (Strings{"layers.0.attention.qkv", "layers.0.attention.out",
                                                       "layers.0.mlp.gate_up", "layers.0.mlp.down"}));
  EXPECT_EQ(units_of(model, "embedding"), Strings{"embedding"});
  EXPECT_EQ(units_of(model, "layers.0"), (Strings{"layers.0", "layers.0.frozen"}));
  EXPECT_EQ(units_of(model, "layers.1"), Strings{"layers.1"});
  EXPECT_EQ(units_of(model, "head"), Strings{"head"});
  for (const UnitSpec& unit : model.units) {
    EXPECT_EQ(unit.trainable, unit.name != "layers.0.frozen");
    EXPECT_EQ(unit.master, unit.trainable ? DType::f32 : DType::bf16);
  }
  EXPECT_EQ(model.parameter_count(), frozen_model({}).parameter_count());
}

TEST(FrozenUnits, ParametersAreNamedAsInHuggingFaceFiles) {
  const Strings outputs{"layers.1.attention.out"};
  EXPECT_EQ(parameters_of(frozen_model({"model.layers.1.*o_proj.*"}), "layers.1.frozen"), outputs);
  const Strings packed{"layers.1.attention.qkv"};
  EXPECT_EQ(
      parameters_of(frozen_model({".*1.self_attn.[qk]_proj.*", ".*1.self_attn.v_proj.*"}), "layers.1.frozen"),
      packed);
}

TEST(FrozenUnits, PartOfAParameterIsRefusedByName) {
  EXPECT_CONTAINS(
      message_of<UsageError>([] { frozen_model({".*layers.1.*q_proj.*"}); }),
      "freezes model.layers.1.self_attn.q_proj.weight but not model.layers.1.self_attn.v_proj.weight",
      "part of the parameter layers.1.attention.qkv", "freeze that");
  EXPECT_EQ(
      parameters_of(frozen_model({".*layers.1.*q_proj.*", "layers.1.attention.qkv"}), "layers.1.frozen"),
      Strings{"layers.1.attention.qkv"});
}

/// With a shared expert; the experts are spread over two ranks.
ModelSpec spread_model(const Strings& patterns, int64_t layers = 1, const TensorParallel& tensor = {}) {
  ModelConfig model;
  model.family = "qwen2_moe";
  model.n_layers = layers;
  model.vocab_size = 256;
  use_all_settings(model);
  model.freeze = patterns;
  return model_spec(model, 0, tensor, {}, {}, {.degree = 2});
}

/// Router and shared expert are in one unit, which two blocks use.
TEST(FrozenUnits, ABlockHasThePartsThatItUses) {
  const ModelSpec router = spread_model({".*router"});
  EXPECT_EQ(units_of(router, "layers.0"), (Strings{"layers.0", "layers.0.frozen"}));
  EXPECT_EQ(units_of(router, "layers.0.shared"), Strings{"layers.0"});
  EXPECT_EQ(units_of(router, "layers.0.experts"), Strings{"layers.0.experts"});
  const ModelSpec shared = spread_model({".*shared.*"});
  EXPECT_EQ(units_of(shared, "layers.0"), Strings{"layers.0"});
  EXPECT_EQ(units_of(shared, "layers.0.shared"), Strings{"layers.0.frozen"});
}

TEST(FrozenUnits, TheNameOfALayerFreezesTheSameInEveryLayout) {
  const TensorParallel slices{.rank = 0, .degree = 2, .sequence = true};
  for (const TensorParallel& tensor : {TensorParallel(), slices}) {
    Strings frozen;
    for (const UnitSpec& unit : spread_model({"layers.0"}, 2, tensor).units)
      if (!unit.trainable) frozen.push_back(unit.name);
    EXPECT_EQ(frozen, tensor.degree == 1 ? (Strings{"layers.0", "layers.0.experts"})
                                         : (Strings{"layers.0", "layers.0.mlp", "layers.0.experts"}));
  }
}

TEST(FrozenUnits, APatternThatMatchesNothingOrEverythingIsRefused) {
  EXPECT_CONTAINS(message_of<UsageError>([] { frozen_by({"embeding"}); }), "\"embeding\" matches no unit",
                  "the units are embedding, layers.0", "model.embed_tokens.weight");
  EXPECT_CONTAINS(message_of<UsageError>([] { frozen_by({".*"}); }), "freezes every unit");
  EXPECT_CONTAINS(message_of<UsageError>([] { frozen_by({"("}); }), "\"(\" is not a regular expression");
}

}  // namespace
}  // namespace stepforge::testing
