// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/json_reader.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

const Json& document() {
  static const Json json = parse_json(
      R"({"name":"x","size":3,"big":18446744073709551615,"share":0.5,"yes":true,"none":null,
          "list":[{"id":1},{"id":-2}]})",
      "a.json");
  return json;
}

template <typename Read>
std::string refusal(const Read& read) {
  const JsonReader reader(document(), "a.json");
  return message_of<FormatError>([&] { static_cast<void>(read(reader)); });
}

TEST(JsonReader, ReturnsTypedValues) {
  const JsonReader reader(document(), "a.json");
  EXPECT_EQ(reader["name"].text(), "x");
  EXPECT_EQ(reader["size"].integer(), 3);
  EXPECT_EQ(reader["share"].number(), 0.5);
  EXPECT_EQ(reader["size"].number(), 3.0);
  EXPECT_TRUE(reader["yes"].boolean());
  EXPECT_EQ(reader["list"].size(), 2U);
  EXPECT_EQ(reader["list"].at(1)["id"].integer(), -2);
}

TEST(JsonReader, NullCountsAsAbsentAndReturnsTheFallback) {
  const JsonReader reader(document(), "a.json");
  EXPECT_FALSE(reader.has("none"));
  EXPECT_EQ(reader.text_or("none", "z"), "z");
  EXPECT_EQ(reader.integer_or("nowhere", 7), 7);
  EXPECT_EQ(reader.integer_or("size", 7), 3);
  EXPECT_EQ(refusal([](const JsonReader& r) { return r["none"]; }), "a.json: \"none\" is missing");
}

TEST(JsonReader, ErrorsNameSourcePathValueAndWhatIsExpected) {
  EXPECT_EQ(refusal([](const JsonReader& r) { return r["list"].at(1)["id"].count(); }),
            "a.json: \"list[1].id\" is -2, not a non-negative integer");
  EXPECT_EQ(refusal([](const JsonReader& r) { return r["list"].at(0)["name"]; }),
            "a.json: \"list[0].name\" is missing");
  EXPECT_EQ(refusal([](const JsonReader& r) { return r["name"].integer(1); }),
            "a.json: \"name\" is \"x\", not a positive integer");
  EXPECT_EQ(refusal([](const JsonReader& r) { return r["size"].integer(0, 2); }),
            "a.json: \"size\" is 3, not an integer from 0 to 2");
  EXPECT_EQ(refusal([](const JsonReader& r) { return r["big"].integer(); }),
            "a.json: \"big\" is 18446744073709551615, not an integer");
  EXPECT_EQ(refusal([](const JsonReader& r) { return r["share"].integer(); }),
            "a.json: \"share\" is 0.5, not an integer");
  EXPECT_EQ(refusal([](const JsonReader& r) { return r["size"].has("x"); }),
            "a.json: \"size\" is 3, not a JSON object");
  EXPECT_EQ(refusal([](const JsonReader& r) {
              r.refuse("name", "only \"y\" is supported");
              return 0;
            }),
            "a.json: \"name\" is \"x\": only \"y\" is supported");
  EXPECT_EQ(refusal([](const JsonReader& r) {
              r.refuse("none", "needed here");
              return 0;
            }),
            "a.json: \"none\" is absent: needed here");
  EXPECT_EQ(refusal([](const JsonReader& r) {
              r["list"].at(0).only_keys({"name"});
              return 0;
            }),
            "a.json: \"list[0]\": unknown key \"id\"; it may ask for something that is not implemented");
}

TEST(JsonReader, ALongValueIsCut) {
  const Json json = Json::array({std::string(1000, 'a')});
  const JsonReader reader(json, "a.json");
  EXPECT_EQ(message_of<FormatError>([&] { reader.text(); }),
            "a.json: the document is [\"" + std::string(75, 'a') + "..., not a string");
}

}  // namespace
}  // namespace stepforge::testing
