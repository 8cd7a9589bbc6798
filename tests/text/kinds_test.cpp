// SPDX-License-Identifier: Apache-2.0
// Whole tokenizers of every model with every component; recorded from Hugging Face `tokenizers` by
// tools/oracle/make_kind_golden.py.
#include <gtest/gtest.h>

#include "stepforge/base/json.h"
#include "stepforge/base/utf8.h"
#include "stepforge/text/tokenizer.h"
#include "stepforge/text/utf8_repair.h"
#include "tests/support/sanitizer.h"
#include "tests/text/definitions.h"

namespace stepforge::testing {
namespace {

using Ids = std::vector<int32_t>;

/// Calls `use` with the name, the definition and the cases of each recorded tokenizer.
template <typename Use>
void for_each_kind(const Use& use) {
  const Json golden = read_json_file(source_dir() / "tests/golden/text/kinds.json");
  ASSERT_GE(golden["tokenizers"].size(), 60U);
  for (const Json& kind : golden["tokenizers"]) {
    Json definition = kind;
    for (const char* key : {"name", "cases"}) definition.erase(key);
    definition["model"] = golden["models"][kind["model"].get<std::string>()];
    SCOPED_TRACE(kind["name"].get<std::string>());
    use(definition, kind["cases"]);
  }
}

std::string streamed(const Tokenizer& tokenizer, const Ids& ids) {
  StreamDecoder stream(tokenizer);
  std::string text;
  for (const int32_t id : ids) text += stream.push(id);
  return text + stream.finish();
}

TEST(Kinds, GiveTheIdsOfHuggingFaceTokenizers) {
  for_each_kind([](const Json& definition, const Json& cases) {
    const auto tokenizer = tokenizer_of(definition);
    const SpecialTokens around = tokenizer->special_tokens();
    for (const Json& test : cases) {
      const std::string text = test[0].get<std::string>();
      Ids ids = tokenizer->encode(text);
      EXPECT_EQ(ids, test[1].get<Ids>()) << text;
      ids.insert(ids.begin(), around.before.begin(), around.before.end());
      ids.insert(ids.end(), around.after.begin(), around.after.end());
      EXPECT_EQ(ids, test[2].get<Ids>()) << text;
    }
  });
}

TEST(Kinds, DecodeToTheTextOfHuggingFaceTokenizersAtOnceAndAsAStream) {
  for_each_kind([](const Json& definition, const Json& cases) {
    const auto tokenizer = tokenizer_of(definition);
    for (const Json& test : cases) {
      const auto ids = test[2].get<Ids>();
      for (const bool skip : {false, true}) {
        const Json& expected = test[skip ? 4 : 3];
        if (expected.is_null()) continue;  // Hugging Face fails
        EXPECT_EQ(repaired_utf8(tokenizer->decode(ids, skip)), expected.get<std::string>());
        if (skip) continue;
        EXPECT_EQ(streamed(*tokenizer, ids), expected.get<std::string>());
      }
    }
  });
}

TEST(Kinds, DigitsAreTheNumbersOfUnicode17) {
  const auto tokenizer = tokenizer_of(Json::parse(R"({"version": "1.0",
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"},
    "pre_tokenizer": {"type": "Digits", "individual_digits": true}})"));
  std::string text = "a";
  for (char32_t point = 1; point < 0x110000; ++point) {
    if (point >= 0xD800 && point < 0xE000) continue;
    append_utf8(text, point);
    text += 'a';
  }
  // pre_tokenizers.Digits of `tokenizers` 0.23.3 isolates 1,924 characters: each is a piece, and so is what lies between.
  EXPECT_EQ(tokenizer->encode(text).size(), 1924U + 1925U);
}

TEST(Kinds, ATextOfOneLetterTakesTimeInProportionToItsLength) {
  // Without pre-tokenizer the text is one word of a megabyte; quadratic time would be hours. (With sanitizers, a part
  // of it, and minutes.)
  const Json golden = read_json_file(source_dir() / "tests/golden/text/kinds.json");
  const std::string letters(kSanitizer ? 1 << 17 : 1 << 20, 'a');
  for (const auto& [name, model] : golden["models"].items()) {
    SCOPED_TRACE(name);
    const Json definition = {{"version", "1.0"}, {"model", model}};
    const auto tokenizer = tokenizer_of(definition);
    const Ids ids = tokenizer->encode(letters);
    EXPECT_FALSE(ids.empty());
    EXPECT_FALSE(tokenizer->decode(ids).empty());
  }
}

}  // namespace
}  // namespace stepforge::testing
