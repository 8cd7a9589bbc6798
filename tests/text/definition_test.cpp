// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/definition.h"

#include <functional>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/text/bpe_model.h"
#include "tests/support/throws.h"
#include "tests/text/definitions.h"

namespace stepforge::testing {
namespace {

struct Hostile {
  std::string name;
  std::function<void(Json&)> spoil;
  std::vector<std::string> message;
};

void PrintTo(const Hostile& hostile, std::ostream* out) {
  *out << hostile.name;
}

Json& vocab(Json& json) {
  return json["model"]["vocab"];
}
Json& steps(Json& json) {
  return json["pre_tokenizer"]["pretokenizers"];
}

std::vector<Hostile> hostile_definitions() {
  return {
      {"no_model", [](Json& j) { j.erase("model"); }, {"\"model\" is missing"}},
      {"model_of_wrong_type", [](Json& j) { j["model"] = 3; }, {"model", "3", "object"}},
      {"not_bpe", [](Json& j) { j["model"]["type"] = "Magic"; }, {"model.type", "Magic", "BPE"}},
      {"no_vocab", [](Json& j) { j["model"].erase("vocab"); }, {"\"model.vocab\" is missing"}},
      {"no_merges", [](Json& j) { j["model"].erase("merges"); }, {"\"model.merges\" is missing"}},
      {"vocab_is_a_list", [](Json& j) { vocab(j) = Json::array({"a"}); }, {"model.vocab", "object"}},
      {"duplicate_id", [](Json& j) { vocab(j)["abc"] = 256; }, {"model.vocab", "256", "\"ab\"", "\"abc\""}},
      {"id_beyond_the_end", [](Json& j) { vocab(j)["bc"] = 4000000; }, {"\"bc\"", "4000000", "3999999"}},
      {"negative_id", [](Json& j) { vocab(j)["bc"] = -1; }, {"\"bc\"", "-1"}},
      {"huge_id",
       [](Json& j) { vocab(j)["bc"] = 18446744073709551615U; },
       {"\"bc\"", "18446744073709551615"}},
      {"fractional_id", [](Json& j) { vocab(j)["bc"] = 258.5; }, {"\"bc\"", "258.5"}},
      {"id_as_text", [](Json& j) { vocab(j)["bc"] = "258"; }, {"\"bc\"", "\"258\""}},
      {"empty_token", [](Json& j) { vocab(j).erase("bc"), vocab(j)[""] = 258; }, {"empty token"}},
      {"merge_of_unknown_token",
       [](Json& j) { j["model"]["merges"][1] = "ab qq"; },
       {"merges[1]", "\"qq\"", "vocabulary"}},
      {"merge_into_unknown_token",
       [](Json& j) { j["model"]["merges"][1] = "ab z"; },
       {"merges[1]", "\"abz\""}},
      {"merge_of_three", [](Json& j) { j["model"]["merges"][0] = "a b c"; }, {"merges[0]", "two parts"}},
      {"merge_of_one", [](Json& j) { j["model"]["merges"][0] = "ab"; }, {"merges[0]", "two parts"}},
      {"merge_list_of_three",
       [](Json& j) { j["model"]["merges"][0] = Json::array({"a", "b", "c"}); },
       {"merges[0]"}},
      {"merge_of_numbers",
       [](Json& j) { j["model"]["merges"][0] = Json::array({1, 2}); },
       {"merges[0][0]", "string"}},
      {"merge_twice", [](Json& j) { j["model"]["merges"][2] = "a b"; }, {"merges[2]", "earlier"}},
      {"merges_of_wrong_type", [](Json& j) { j["model"]["merges"] = "a b"; }, {"model.merges", "array"}},
      {"dropout", [](Json& j) { j["model"]["dropout"] = 0.1; }, {"dropout", "0.1"}},
      {"ignore_merges_of_wrong_type",
       [](Json& j) { j["model"]["ignore_merges"] = 1; },
       {"ignore_merges", "true or false"}},
      {"unknown_model_key", [](Json& j) { j["model"]["magic"] = 1; }, {"model", "\"magic\""}},
      {"unknown_key", [](Json& j) { j["magic"] = 1; }, {"\"magic\""}},
      {"other_version", [](Json& j) { j["version"] = "2.0"; }, {"version", "2.0"}},
      {"normalizer", [](Json& j) { j["normalizer"] = {{"type", "Magic"}}; }, {"normalizer.type", "Magic"}},
      {"normalizer_in_a_sequence",
       [](Json& j) { j["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "Magic"}}}}}; },
       {"normalizer.normalizers[0]", "Magic"}},
      {"truncation", [](Json& j) { j["truncation"] = 8; }, {"truncation", "object"}},
      {"metaspace_without_replacement",
       [](Json& j) { j["pre_tokenizer"] = {{"type", "Metaspace"}}; },
       {"pre_tokenizer.replacement"}},
      {"unknown_step",
       [](Json& j) { steps(j)[0] = {{"type", "Magic"}}; },
       {"pretokenizers[0].type", "Magic"}},
      {"unknown_behavior",
       [](Json& j) { steps(j)[0]["behavior"] = "Merged"; },
       {"pretokenizers[0].behavior", "Merged"}},
      {"two_patterns",
       [](Json& j) { steps(j)[0]["pattern"]["String"] = " "; },
       {"pretokenizers[0].pattern", "String"}},
      {"long_delimiter",
       [](Json& j) { steps(j)[0] = {{"type", "CharDelimiterSplit"}, {"delimiter", "ab"}}; },
       {"pretokenizers[0].delimiter", "ab", "one character"}},
      {"normalizer_option",
       [](Json& j) { j["normalizer"] = {{"type", "NFC"}, {"level", 3}}; },
       {"normalizer", "level"}},
      {"token_that_normalizes_to_nothing",
       [](Json& j) {
         j["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
         j["added_tokens"][0]["content"] = " ";
         j["added_tokens"][0]["normalized"] = true;
       },
       {"added_tokens[0].content", "nothing"}},
      {"broken_pattern", [](Json& j) { steps(j)[0]["pattern"]["Regex"] = "(a"; }, {"pre_tokenizer", "(a"}},
      {"unknown_pattern",
       [](Json& j) { steps(j)[0]["pattern"]["Regex"] = "\\w+"; },
       {"pre_tokenizer", "\\w"}},
      {"hole_that_an_added_token_fills",
       [](Json& j) { vocab(j)["bc"] = 259, j["added_tokens"][0]["id"] = 259; },
       {"added_tokens[0].id", "259", "\"bc\"", "holes"}},
      {"unknown_decoder", [](Json& j) { j["decoder"]["type"] = "Magic"; }, {"decoder.type", "Magic"}},
      {"decoder_option",
       [](Json& j) { j["decoder"] = {{"type", "Fuse"}, {"level", 3}}; },
       {"decoder", "level"}},
      {"decoder_without_suffix",
       [](Json& j) { j["decoder"] = {{"type", "BPEDecoder"}, {"suffix", ""}}; },
       {"decoder.suffix", "empty"}},
      {"decoder_in_a_sequence",
       [](Json& j) {
         j["decoder"] = {{"type", "Sequence"}, {"decoders", Json::array({{{"type", "Magic"}}})}};
       },
       {"decoder.decoders[0].type", "Magic"}},
      {"merge_shorter_than_its_prefix",
       [](Json& j) { j["model"]["continuing_subword_prefix"] = "##"; },
       {"merges[0]", "shorter", "prefix"}},
      {"metaspace_that_contradicts_itself",
       [](Json& j) {
         j["decoder"] = {{"type", "Metaspace"}, {"replacement", "_"}, {"add_prefix_space", false}};
       },
       {"decoder.add_prefix_space", "never"}},
      {"other_post_processor",
       [](Json& j) { j["post_processor"] = {{"type", "Bert"}}; },
       {"post_processor.type", "Bert"}},
      {"added_tokens_of_wrong_type", [](Json& j) { j["added_tokens"] = 1; }, {"added_tokens", "array"}},
      {"hole_before_added",
       [](Json& j) { j["added_tokens"][0]["id"] = 300; },
       {"added_tokens[0].id", "300", "259"}},
      {"added_over_model", [](Json& j) { j["added_tokens"][0]["id"] = 5; }, {"added_tokens[0].id", "5"}},
      {"added_without_id",
       [](Json& j) { j["added_tokens"][0].erase("id"); },
       {"added_tokens[0].id", "missing"}},
      {"added_empty", [](Json& j) { j["added_tokens"][0]["content"] = ""; }, {"added_tokens[0]", "empty"}},
      {"added_twice",
       [](Json& j) { j["added_tokens"].push_back(j["added_tokens"][0]); },
       {"added_tokens[1]", "twice"}},
      {"lstrip", [](Json& j) { j["added_tokens"][0]["lstrip"] = 1; }, {"added_tokens[0].lstrip"}},
      {"unknown_token_flag",
       [](Json& j) { j["added_tokens"][0]["bold"] = true; },
       {"added_tokens[0]", "bold"}},
  };
}

class HostileDefinition : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileDefinition, IsRefusedWithFileComponentAndValue) {
  Json json = good_definition();
  GetParam().spoil(json);
  std::vector<std::string> message = GetParam().message;
  message.emplace_back("dir/tokenizer.json");
  EXPECT_CONTAINS(
      message_of<FormatError>([&] { return parse_definition(json.dump(), "dir/tokenizer.json"); }),
      (message));
}

INSTANTIATE_TEST_SUITE_P(Definition, HostileDefinition, ::testing::ValuesIn(hostile_definitions()),
                         [](const auto& info) { return info.param.name; });

TEST(Definition, RefusesInvalidOrDeepJson) {
  const std::string good = good_definition().dump();
  const std::string deep = std::string(2'000'000, '[') + std::string(2'000'000, ']');
  for (const auto& [json, fault] : std::vector<std::pair<std::string, std::string>>{
           {"", "byte 0"},
           {"[]", "object"},
           {good.substr(0, good.size() / 2), "byte"},
           {good + "x", "byte"},
           {"{\"version\": \"\xFF\"}", "byte"},
           {R"({"model": 1, "model": 2})", "\"model\" appears twice"},
           {deep, "nested"},
           {"{\"post_processor\":" + deep + "}", "nested"},
       }) {
    EXPECT_CONTAINS(message_of<FormatError>([&] { return parse_definition(json, "t.json"); }), "t.json",
                    fault)
        << json.substr(0, 80);
  }
}

TEST(Definition, ReadsBothFormsOfMerges) {
  Json json = good_definition();
  const BpeDefinition as_text(JsonReader(json["model"], "t.json"));
  json["model"]["merges"] = Json::array({{"a", "b"}, {"ab", "c"}, {"b", "c"}});
  const BpeDefinition as_lists(JsonReader(json["model"], "t.json"));
  EXPECT_EQ(as_text.merges, as_lists.merges);
  EXPECT_EQ(as_text.merged_ids, (std::vector<int32_t>{256, 257, 258}));
}

TEST(Definition, AcceptsAnEmptySequenceOfNormalizers) {
  Json json = good_definition();
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json::array()}};
  EXPECT_EQ(parse_definition(json.dump(), "t.json").model.vocabulary->count(), 259);
}

TEST(Definition, AnAddedTokenOfTheModelKeepsTheModelsId) {
  Json json = good_definition();
  json["added_tokens"].push_back(json["added_tokens"][0]);
  json["added_tokens"][1]["content"] = "abc";
  json["added_tokens"][1]["id"] = 257;
  EXPECT_EQ(parse_definition(json.dump(), "t.json").added_tokens.at(1).id, 257);
}

TEST(Definition, TheHashDependsOnValuesNotOnLayout) {
  Json json = good_definition();
  const std::string hash = parse_definition(json.dump(), "a").content_hash;
  EXPECT_EQ(parse_definition(json.dump(4), "b").content_hash, hash);
  json["model"]["merges"].erase(2);
  EXPECT_NE(parse_definition(json.dump(), "a").content_hash, hash);
}

TEST(Definition, ContentHashIsThatOfTheJsonSortedByKey) {
  Json json = good_definition();
  for (const std::string content : {"a\"b", "a\\b", "a\nb", "\u007f", "\u00e9t\u00e9", "\U0001F600"})
    json["added_tokens"].push_back({{"id", 259 + json["added_tokens"].size()}, {"content", content}});
  const std::string text = json.dump();
  EXPECT_EQ(parse_definition(text, "test").content_hash, content_hash(nlohmann::json::parse(text).dump()));
}

}  // namespace
}  // namespace stepforge::testing
