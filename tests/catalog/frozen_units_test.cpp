// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/frozen_units.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/catalog/decoder_spec.h"
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

TEST(FrozenUnits, PartOfAUnitIsRefusedByName) {
  EXPECT_CONTAINS(message_of<UsageError>([] { frozen_by({"layers\\.3\\.mlp\\..*"}); }), "layers.3.mlp.",
                  "not layers.3.attention.", "both are in the unit layers.3", "name the unit");
}

TEST(FrozenUnits, APatternThatMatchesNothingOrEverythingIsRefused) {
  EXPECT_CONTAINS(message_of<UsageError>([] { frozen_by({"embeding"}); }), "\"embeding\" matches no unit",
                  "the units are embedding, layers.0");
  EXPECT_CONTAINS(message_of<UsageError>([] { frozen_by({".*"}); }), "freezes every unit");
  EXPECT_CONTAINS(message_of<UsageError>([] { frozen_by({"("}); }), "\"(\" is not a regular expression");
}

}  // namespace
}  // namespace stepforge::testing
