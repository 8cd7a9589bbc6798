// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/json.h"

#include <fstream>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "tests/support/sanitizer.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

std::string text_refusal(std::string_view text, const JsonLimits& limits = {}) {
  return message_of<FormatError>([&] { parse_json(text, "some.json", limits); });
}

TEST(ParseJson, KeepsTheOrderOfMembers) {
  const Json document = parse_json(
      R"({"z": [1, -2, 18446744073709551615, 2.5, true, false, null], "a": {"b": "\u00e9\n", "": {}}, "m": []})",
      "some.json");
  EXPECT_EQ(document.dump(),
            R"({"z":[1,-2,18446744073709551615,2.5,true,false,null],"a":{"b":"é\n","":{}},"m":[]})");
}

TEST(ParseJson, AcceptsAScalarDocument) {
  EXPECT_EQ(parse_json(" 7 ", "some.json"), Json(7));
  EXPECT_EQ(parse_json("\"x\"", "some.json"), Json("x"));
}

TEST(ParseJson, AgreesWithTheLibrarysParser) {
  const std::string text =
      R"([{"a":[[[]],{}],"b":{"c":{"d":[1,{"e":"f"}]}}},[],{},"",-0.0,1e-5,[null,[true]]])";
  EXPECT_EQ(parse_json(text, "some.json"), Json::parse(text));
}

TEST(ParseJson, ReadsNumbersAsTheLibraryDoes) {
  for (const char* number :
       {"0", "-0", "7", "-7", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
        "-9223372036854775809", "18446744073709551615", "18446744073709551616", "1.5", "-0.0", "1e5", "1E+5",
        "2.5e-3", "1e308", "5e-324", "0.1", "123456789012345678901234567890"}) {
    const Json ours = parse_json(number, "some.json");
    const Json theirs = Json::parse(number);
    EXPECT_EQ(ours, theirs) << number;
    EXPECT_EQ(ours.type(), theirs.type()) << number;
  }
}

TEST(ParseJson, RefusesADuplicateKeyWithinOneObject) {
  EXPECT_CONTAINS(text_refusal(R"({"a":1,"b":{},"a":2})"), "key \"a\" appears twice");
  EXPECT_CONTAINS(text_refusal(R"({"a":1,"\u0061":2})"), "key \"a\" appears twice");
  EXPECT_EQ(parse_json(R"({"a":{"a":{"a":1}},"b":{"a":2}})", "some.json").size(), 2U);
}

TEST(ParseJson, ErrorsNameTheSourceAndTheByte) {
  EXPECT_CONTAINS(text_refusal(R"({"a": tru})"), "some.json: byte 6: expected a value, found \"t\"");
  EXPECT_CONTAINS(text_refusal(R"({"a":1,"a":2})"), "some.json: byte 7:");
}

TEST(ParseJson, RefusesBadSyntax) {
  for (const char* text :
       {"",       " ",           "{",         "[1,]", "{\"a\":1,}",   "{'a':1}",         "[1] x", "[1][2]",
        "nul",    "01",          "+1",        "1.",   "NaN",          "[Infinity]",      "1e999", "\"\\x\"",
        "\"\t\"", "\"\\ud800\"", "/* c */ 1", "\xff", "\"\xc0\x80\"", "\"\xed\xa0\x80\""}) {
    EXPECT_CONTAINS(text_refusal(text), "some.json: ") << text;
  }
}

TEST(ParseJson, RefusesDepthBeyondTheLimit) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_NO_THROW(parse_json(nested(64), "some.json"));
  EXPECT_CONTAINS(text_refusal(nested(65)), "some.json: byte 64: JSON nested deeper than 64 levels");
  EXPECT_CONTAINS(text_refusal(std::string(10'000'000, '[')), "deeper than 64");
  EXPECT_CONTAINS(text_refusal(R"({"a":{"a":1}})", {.max_depth = 1}), "deeper than 1 ");
}

TEST(ParseJson, RefusesMoreBytesThanTheLimit) {
  EXPECT_CONTAINS(text_refusal("[1, 2]", {.max_bytes = 5}), "6 bytes of JSON; at most 5");
}

TEST(ParseJson, RefusesMoreElementsInOneArrayOrObjectThanTheLimit) {
  EXPECT_EQ(parse_json("[[1,2],[3,4]]", "some.json", {.max_elements = 2}).size(), 2U);
  EXPECT_CONTAINS(text_refusal("[[1],[2,3,4]]", {.max_elements = 2}), "byte 10", "more than 2 elements");
  EXPECT_CONTAINS(text_refusal(R"({"a":1,"b":2})", {.max_elements = 1}), "more than 1 elements");
}

// The work per key must not grow with the number of keys: 300,000 keys once took minutes.
TEST(ParseJson, ReadsAnObjectOfManyKeys) {
  std::string text = "{";
  constexpr int count = kSanitizer ? 30'000 : 300'000;
  for (int i = 0; i < count; ++i) text += format("{}\"token {}\":{}", i == 0 ? "" : ",", i, i);
  text += "}";
  const Json document = parse_json(text, "some.json");
  EXPECT_EQ(document.size(), static_cast<std::size_t>(count));
  EXPECT_EQ(document.back(), Json(count - 1));
}

TEST(ReadJsonFile, NamesTheFile) {
  const TempFolder folder;
  std::ofstream(folder / "bad.json") << "{";
  const std::string message = message_of<FormatError>([&] { read_json_file(folder / "bad.json"); });
  EXPECT_CONTAINS(message, (folder / "bad.json").string());
  EXPECT_THROW(read_json_file(folder / "missing.json"), Error);
}

}  // namespace
}  // namespace stepforge::testing
