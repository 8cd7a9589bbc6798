// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/model.h"

#include <functional>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/text/base64.h"
#include "stepforge/text/piece_trie.h"
#include "tests/support/throws.h"
#include "tests/text/definitions.h"

namespace stepforge::testing {
namespace {

using Ids = std::vector<int32_t>;

Json with_model(const Json& model) {
  return {{"version", "1.0"}, {"model", model}};
}

Ids encode(const Json& model, const std::string& text) {
  return tokenizer_of(with_model(model))->encode(text);
}

const Json kBpe = Json::parse(R"({"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]})");
const Json kUnigram =
    Json::parse(R"({"type": "Unigram", "unk_id": 0, "vocab": [["?", 0.0], ["a", -1.0], ["aa", -2.0]]})");
const Json kWordPiece = Json::parse(
    R"({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 4, "vocab": {"[UNK]": 0, "a": 1, "##a": 2, "##ab": 3}})");

TEST(Model, CharactersWithoutTokenAreLeftOutOnlyIfThereIsNoUnknownToken) {
  EXPECT_EQ(encode(kBpe, "xaxbx"), (Ids{2}));
  Json model = kBpe;
  model["unk_token"] = "b";
  EXPECT_EQ(encode(model, "xxa"), (Ids{1, 1, 0}));
  model["fuse_unk"] = true;
  EXPECT_EQ(encode(model, "xxa"), (Ids{1, 0}));
  model["unk_token"] = "?";
  EXPECT_CONTAINS(message_of<Error>([&] { encode(model, "ax"); }), "\"x\"", "\"?\"", "unk_token");
}

TEST(Model, OfEqualScoresTheFirstOfferedWins) {
  // "aa" ends where "a" "a" ends, with the same sum; it begins earlier and is offered first.
  EXPECT_EQ(encode(kUnigram, "aa"), (Ids{2}));
  Json model = kUnigram;
  model["vocab"][2][1] = -2.5;
  EXPECT_EQ(encode(model, "aa"), (Ids{1, 1}));
}

TEST(Model, UnknownCharactersBesideEachOtherAreOneUnknownToken) {
  EXPECT_EQ(encode(kUnigram, "xyaz"), (Ids{0, 1, 0}));
  Json model = kUnigram;
  model.erase("unk_id");
  EXPECT_CONTAINS(message_of<Error>([&] { encode(model, "x"); }), "\"x\"", "unk_id");
}

TEST(Model, AWordPieceWordWithTooManyCharactersIsUnknown) {
  EXPECT_EQ(encode(kWordPiece, "aaab"), (Ids{1, 2, 3}));
  EXPECT_EQ(encode(kWordPiece, "aaaab"), (Ids{0}));
  EXPECT_EQ(encode(kWordPiece, "ac"), (Ids{0}));
}

TEST(Model, ModelsWithoutTypeAreToldByTheirFields) {
  for (const Json& model : {kBpe, kUnigram, kWordPiece}) {
    Json untyped = model;
    untyped.erase("type");
    EXPECT_EQ(encode(untyped, "a"), encode(model, "a"));
  }
}

TEST(Model, IdsMayHaveHolesThatAreNoTokens) {
  Json model = kBpe;
  model["vocab"]["ab"] = 1000;
  const auto tokenizer = tokenizer_of(with_model(model));
  EXPECT_EQ(tokenizer->encode("ab"), (Ids{1000}));
  EXPECT_EQ(tokenizer->vocab_size(), 1001);
  EXPECT_CONTAINS(message_of<Error>([&] { tokenizer->decode(Ids{500}); }), "500");
}

TEST(Model, MergesThatMakeEachOtherEnd) {
  // "ab" + "" cannot be; a cycle needs tokens of equal spelling, and these have one id.
  Json model = kBpe;
  model["merges"] = Json::array({"a b", "ab ab", "abab a"});
  model["vocab"]["abab"] = 3;
  model["vocab"]["ababa"] = 4;
  EXPECT_EQ(encode(model, "ababab"), (Ids{3, 2}));
}

struct Refused {
  const char* name;
  std::function<Json()> model;
  std::vector<std::string> message;
};

void PrintTo(const Refused& refused, std::ostream* out) {
  *out << refused.name;
}

template <typename Spoil>
Json spoiled(Json model, const Spoil& spoil) {
  spoil(model);
  return model;
}

std::vector<Refused> refused_models() {
  return {
      {"score_missing",
       [] { return spoiled(kUnigram, [](Json& j) { j["vocab"][1].erase(1); }); },
       {"vocab[1]", "score"}},
      {"score_as_text",
       [] { return spoiled(kUnigram, [](Json& j) { j["vocab"][1][1] = "x"; }); },
       {"vocab[1][1]"}},
      {"unknown_id_beyond",
       [] { return spoiled(kUnigram, [](Json& j) { j["unk_id"] = 3; }); },
       {"unk_id", "3"}},
      {"unigram_empty_token",
       [] { return spoiled(kUnigram, [](Json& j) { j["vocab"][1][0] = ""; }); },
       {"empty"}},
      {"word_piece_without_prefix",
       [] { return spoiled(kWordPiece, [](Json& j) { j.erase("continuing_subword_prefix"); }); },
       {"continuing_subword_prefix"}},
      {"word_piece_negative_limit",
       [] { return spoiled(kWordPiece, [](Json& j) { j["max_input_chars_per_word"] = -1; }); },
       {"max_input_chars_per_word", "-1"}},
      {"word_level_without_unknown_token",
       [] { return Json{{"type", "WordLevel"}, {"vocab", {{"a", 0}}}}; },
       {"unk_token"}},
      {"long_token",
       [] {
         return spoiled(kUnigram,
                        [](Json& j) { j["vocab"][1][0] = std::string(PieceTrie::kMaxPieceBytes + 1, 'x'); });
       },
       {"model.vocab", "1025", "1024"}},
      {"too_many_tokens",
       [] {
         return spoiled(kUnigram,
                        [](Json& j) { j["vocab"] = Json::array_t(kMaxVocabulary + 1, Json(nullptr)); });
       },
       {"model.vocab", "4000001", "4000000"}},
  };
}

class RefusedModel : public ::testing::TestWithParam<Refused> {};

TEST_P(RefusedModel, IsNamedWithItsValue) {
  std::vector<std::string> message = GetParam().message;
  message.emplace_back("test/tokenizer.json");
  const Json definition = with_model(GetParam().model());
  EXPECT_CONTAINS(message_of<FormatError>([&] { tokenizer_of(definition); }), (message));
}

INSTANTIATE_TEST_SUITE_P(Model, RefusedModel, ::testing::ValuesIn(refused_models()),
                         [](const auto& info) { return info.param.name; });

TEST(Base64, OnlyTheCanonicalFormIsRead) {
  EXPECT_EQ(decode_base64("YWI="), "ab");
  EXPECT_EQ(decode_base64(""), "");
  for (const char* wrong : {"YWI", "YWJ=", "YW=I", "Y===", "====", "YW I", "YWI=YWI="})
    EXPECT_EQ(decode_base64(wrong), std::nullopt) << wrong;
}

TEST(CharacterMap, RefusesWhatIsCutOffAndSurvivesEveryTrie) {
  const auto map_of = [](const std::string& base64) {
    Json definition = with_model(kBpe);
    definition["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", base64}};
    return tokenizer_of(definition);
  };
  EXPECT_CONTAINS(message_of<FormatError>([&] { map_of("x"); }), "normalizer.precompiled_charsmap", "base64");
  EXPECT_CONTAINS(message_of<FormatError>([&] { map_of("AAA="); }), "cut off");
  EXPECT_CONTAINS(message_of<FormatError>([&] { map_of("CAAAAAAA"); }), "8 bytes", "2 follow");
  EXPECT_CONTAINS(message_of<FormatError>([&] { map_of("AAAAAP8="); }), "UTF-8");
  // Units that point far beyond the end: "a" has no entry.
  EXPECT_EQ(map_of("BAAAAP////8=")->encode("a"), (Ids{0}));
  EXPECT_EQ(map_of("AAAAAA==")->encode("a"), (Ids{0}));
}

}  // namespace
}  // namespace stepforge::testing
