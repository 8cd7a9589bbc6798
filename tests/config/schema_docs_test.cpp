// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/schema_docs.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "stepforge/base/format.h"
#include "stepforge/config/toml_text.h"
#include "tests/config/config_testing.h"

namespace stepforge::testing {
namespace {

FieldInfo field(const std::string& path) {
  for (const FieldInfo& info : all_fields()) {
    if (info.path() == path) return info;
  }
  ADD_FAILURE() << "no field " << path;
  return {};
}

TEST(SchemaDocs, EveryFieldHasADescriptionOfOneSentence) {
  std::set<std::string> paths;
  for (const FieldInfo& info : all_fields()) {
    EXPECT_TRUE(info.doc.ends_with('.')) << info.path();
    EXPECT_EQ(info.doc.find(". "), std::string::npos) << info.path();
    EXPECT_TRUE(paths.insert(info.path()).second) << info.path() << " is listed twice";
  }
}

TEST(SchemaDocs, EveryNumberHasARange) {
  for (const FieldInfo& info : all_fields()) {
    const bool number = info.type == FieldType::integer || info.type == FieldType::number ||
                        info.type == FieldType::integers || info.type == FieldType::numbers;
    EXPECT_EQ(number, !info.range.empty()) << info.path();
  }
}

TEST(SchemaDocs, DefaultsAreValid) {
  EXPECT_EQ(parsed(config_toml(Config{})).config, Config{});
}

TEST(SchemaDocs, FieldInfoHasEverythingInTheSchema) {
  const FieldInfo interval = field("checkpoint.interval");
  EXPECT_EQ(interval.section, "checkpoint");
  EXPECT_EQ(interval.type_name, "integer");
  EXPECT_EQ(interval.default_value, "500");
  EXPECT_EQ(interval.unit, "steps");
  EXPECT_EQ(interval.range, "1 to 1e12");
  EXPECT_EQ(field("precision.compute").choices, (Strings{"fp32", "bf16"}));
  EXPECT_EQ(field("model.rope_scaling.factor").default_value, "8.0");
  EXPECT_EQ(field("data.sources[].weight").default_value, "1.0");
  EXPECT_EQ(field("data.sources").type_name, "list of tables");
  EXPECT_EQ(field("run_dir").section, "");
}

TEST(SchemaDocs, HelpMarkdownAndJsonContainEveryField) {
  const std::string markdown = schema_markdown();
  const Json schema = schema_json();
  const Json& properties = schema["properties"];
  for (const FieldInfo& info : all_fields()) {
    EXPECT_CONTAINS(markdown, format("| `{}` | {} |", info.name, info.type_name)) << info.path();
    EXPECT_CONTAINS("\n" + schema_help(), "\n  " + info.path());
    EXPECT_CONTAINS(schema_help(info.path()), "  " + info.path());
    const Json& at = info.section.empty() ? properties : properties.at(info.section).at("properties");
    const bool nested = info.name.find('.') != std::string::npos;
    EXPECT_TRUE(nested || at.contains(info.name)) << info.path();
  }
}

TEST(SchemaDocs, HelpSuggestsANameForAnUnknownSection) {
  EXPECT_CONTAINS(schema_help(), "[training]");
  try {
    schema_help("trainning");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "the configuration has no section or field \"trainning\"; did you mean \"training\"?");
  }
}

TEST(SchemaJson, DescribesTypesLimitsAndDefaults) {
  const Json schema = schema_json();
  EXPECT_EQ(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
  EXPECT_EQ(schema["additionalProperties"], false);
  const Json& training = schema["properties"]["training"];
  EXPECT_EQ(training["additionalProperties"], false);
  EXPECT_EQ(
      training["properties"]["steps"].dump(),
      R"({"type":"integer","minimum":0,"maximum":1000000000000,"description":"Total number of optimizer steps; )"
      R"(0 means that epochs sets the length of the run. Unit: steps.","default":0})");
  const Json& batch = training["properties"]["global_batch_size"];
  EXPECT_EQ(batch["anyOf"].dump(), R"([{"const":-1},{"type":"integer","minimum":1,"maximum":16777216}])");
  const Json& source = schema["properties"]["data"]["properties"]["sources"];
  EXPECT_EQ(source["type"], "array");
  EXPECT_EQ(source["items"]["properties"]["weight"]["exclusiveMinimum"], 0.0);
  EXPECT_EQ(schema["properties"]["precision"]["properties"]["compute"]["enum"].dump(), R"(["fp32","bf16"])");
  EXPECT_EQ(schema["properties"]["checkpoint"]["properties"]["allow_changed"]["items"]["enum"].size(), 4U);
}

TEST(ConfigToml, AnyStringAndListIsUnchangedByPrintingAndLoading) {
  Config config;
  config.run_dir = "a \"b\" \\ é\n\t\r\x01\x7f\u0085#";
  config.optimizer.lr = 1.0 / 3.0;
  config.optimizer.eps = 1e-300;
  config.training.seed = 999999999999999;
  config.data.sources = {{.path = "x", .weight = 2.5, .field = "body", .format = DataFormat::jsonl},
                         {.path = "[y]"}};
  config.optimizer.param_groups = {{.pattern = "^emb.*\\d$", .lr = 1e-5}};
  config.activation_checkpoint.mode = RecomputeMode::regions;
  config.activation_checkpoint.regions = {RecomputeRegion::mlp, RecomputeRegion::attention};
  EXPECT_EQ(parsed(config_toml(config)).config, config);
  EXPECT_EQ(parsed(config_toml(config, true)).config, config);
}

TEST(ConfigToml, CommentsAreDescriptionsOrOrigins) {
  EXPECT_CONTAINS(config_toml(Config{}, true), "\n# Peak learning rate. (0 to 1000)\nlr = 8e-4\n");
  EXPECT_FALSE(testing::contains(config_toml(Config{}), "#"));
  const LoadedConfig loaded = parsed("preset = \"debug\"\n", {"training.steps=3"});
  const std::string text = config_toml_with_places(loaded);
  EXPECT_CONTAINS(text, "\nsteps = 3                                 # command line\n") << text;
  EXPECT_CONTAINS(text, "\ndim = 64                                  # preset debug\n");
  EXPECT_EQ(parsed(text).config, loaded.config);
}

TEST(TomlText, NumbersAreTheShortestExactText) {
  EXPECT_EQ(toml_float(8e-4), "8e-4");
  EXPECT_EQ(toml_float(0.95), "0.95");
  EXPECT_EQ(toml_float(500000.0), "500000.0");
  EXPECT_EQ(toml_float(1e12), "1000000000000.0");
  EXPECT_EQ(toml_float(1e22), "1e22");
  EXPECT_EQ(toml_float(-1.0), "-1.0");
  EXPECT_EQ(number_text(3.0), "3");
}

TEST(TomlText, LongValuesAreTruncatedBetweenCharacters) {
  ConfigValue value;
  value.text = std::string(58, 'a') + "éé";
  EXPECT_EQ(shown_value(value), "\"" + std::string(58, 'a') + "...");
}

}  // namespace
}  // namespace stepforge::testing
