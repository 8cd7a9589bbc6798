// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/tokenizer.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/random.h"
#include "stepforge/base/threads.h"
#include "stepforge/base/utf8.h"
#include "tests/support/sanitizer.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/text/definitions.h"

namespace stepforge::testing {
namespace {

using Ids = std::vector<int32_t>;

/// Valid UTF-8, often with characters that the patterns treat differently.
std::string random_text() {
  const auto code_points = *rc::gen::container<std::vector<uint32_t>>(
      rc::gen::oneOf(rc::gen::inRange<uint32_t>(0x20, 0x7F),
                     rc::gen::element<uint32_t>(' ', '\n', '\r', '\t', 'a', 'b', 'c', '\'', '<', '|'),
                     rc::gen::inRange<uint32_t>(0, 0xD800), rc::gen::inRange<uint32_t>(0xE000, 0x110000)));
  std::string text;
  for (const uint32_t c : code_points) append_utf8(text, c);
  return text;
}

std::vector<std::unique_ptr<Tokenizer>> all_kinds() {
  std::vector<std::unique_ptr<Tokenizer>> kinds;
  kinds.push_back(make_byte_tokenizer());
  kinds.push_back(tokenizer_of(good_definition()));
  kinds.push_back(load_tokenizer(golden_folder("llama3_like")));
  kinds.push_back(load_tokenizer(golden_folder("gpt2_like")));
  return kinds;
}

TEST(Tokenizer, DecodingEncodedTextReturnsTheText) {
  const auto kinds = all_kinds();
  EXPECT_TRUE(rc::check([&] {
    const std::string text = random_text();
    for (const auto& tokenizer : kinds) RC_ASSERT(tokenizer->decode(tokenizer->encode(text)) == text);
  }));
}

TEST(Tokenizer, AStreamReturnsTheSameTextInCompleteCharacters) {
  const auto kinds = all_kinds();
  EXPECT_TRUE(rc::check([&] {
    const std::string text = random_text();
    for (const auto& tokenizer : kinds) {
      StreamDecoder stream(*tokenizer);
      std::string streamed;
      for (const int32_t id : tokenizer->encode(text)) {
        const std::string part = stream.push(id);
        RC_ASSERT(find_invalid_utf8(part) == std::string_view::npos);
        streamed += part;
      }
      RC_ASSERT(streamed + stream.finish() == text);
    }
  }));
}

TEST(Tokenizer, EarlierTextsDoNotChangeTheIdsOfAnEncoder) {
  const auto tokenizer = load_tokenizer(golden_folder("llama3_like"));
  const auto encoder = tokenizer->encoder();
  EXPECT_TRUE(rc::check([&] {
    const std::string text = random_text();
    Ids ids = {7};
    encoder->append(text, ids);
    ids.erase(ids.begin());
    RC_ASSERT(ids == tokenizer->encode(text));
  }));
}

TEST(Tokenizer, ClearingAFullCacheDoesNotChangeIds) {
  const auto tokenizer = tokenizer_of(good_definition());
  const auto encoder = tokenizer->encoder();
  for (int round = 0; round < 2; ++round) {
    for (int number = 0; number < 80'000; ++number) {
      // A word of letters: the digits of `number` as a to j, which the merges of a, b and c touch.
      std::string word = std::to_string(number);
      for (char& c : word) c = static_cast<char>(c - '0' + 'a');
      Ids ids;
      encoder->append(word, ids);
      ASSERT_EQ(tokenizer->decode(ids), word);
      const bool merged = word.find("ab") != std::string::npos || word.find("bc") != std::string::npos;
      ASSERT_EQ(ids.size() < word.size(), merged) << word;
    }
  }
}

TEST(Tokenizer, ThreadsSharingOneTokenizerAgree) {
  const auto tokenizer = load_tokenizer(golden_folder("llama3_like"));
  std::vector<std::string> texts;
  std::vector<Ids> expected;
  for (uint64_t i = 0; i < 400; ++i) {
    std::string text;
    for (uint64_t j = 0; j < 40; ++j)
      append_utf8(text, 0x20 + static_cast<char32_t>(mix_bits(i * 64 + j) % 0x300));
    expected.push_back(tokenizer->encode(text));
    texts.push_back(std::move(text));
  }
  std::vector<Ids> found(texts.size());
  parallel_for_each(std::ssize(texts), 8, [&](int64_t i) {
    found[static_cast<size_t>(i)] = tokenizer->encode(texts[static_cast<size_t>(i)]);
  });
  EXPECT_EQ(found, expected);
}

TEST(Tokenizer, SpecialTokensInTheTextBecomeTheirIds) {
  const auto tokenizer = tokenizer_of(good_definition());
  EXPECT_EQ(tokenizer->encode("abc<|endoftext|>bc"), (Ids{257, 259, 258}));
  EXPECT_EQ(tokenizer->encode("<|endoftext"), make_byte_tokenizer()->encode("<|endoftext"));
  EXPECT_TRUE(tokenizer->is_special(259));
  EXPECT_FALSE(tokenizer->is_special(257));
  EXPECT_FALSE(tokenizer->is_special(-1));
  EXPECT_FALSE(tokenizer->is_special(260));
}

TEST(Tokenizer, TheLongestAddedTokenWins) {
  Json json = good_definition();
  for (const char* content : {"<a", "<ab>", "<ab"}) {
    Json token = json["added_tokens"][0];
    token["content"] = content;
    token["id"] = 259 + json["added_tokens"].size();
    json["added_tokens"].push_back(token);
  }
  EXPECT_EQ(tokenizer_of(json)->encode("<ab><ab<a<"), (Ids{261, 262, 260, '<'}));
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8WithTheOffset) {
  for (const auto& tokenizer : all_kinds()) {
    EXPECT_CONTAINS(message_of<FormatError>([&] { return tokenizer->encode("caf\xE9 au lait"); }), "byte 3",
                    "0xe9");
    EXPECT_CONTAINS(message_of<FormatError>([&] { return tokenizer->encode("\xED\xA0\x80"); }), "byte 0");
  }
}

TEST(Tokenizer, RefusesIdsOutsideTheVocabulary) {
  for (const auto& tokenizer : all_kinds()) {
    const int32_t size = tokenizer->vocab_size();
    EXPECT_CONTAINS(message_of<Error>([&] { return tokenizer->decode(Ids{0, -1}); }), "-1",
                    std::to_string(size));
    EXPECT_CONTAINS(message_of<Error>([&] { return tokenizer->decode(Ids{size}); }), std::to_string(size));
    EXPECT_NO_THROW(static_cast<void>(tokenizer->decode(Ids{size - 1})));
  }
}

/// good_definition() with one more added token, which gets the next id.
void add_token(Json& json, const std::string& content) {
  Json token = json["added_tokens"][0];
  token["content"] = content;
  token["id"] = 259 + json["added_tokens"].size();
  json["added_tokens"].push_back(std::move(token));
}

// Recorded with tokenizers 0.23.3: its ByteLevel decoder decodes added tokens as byte alphabet as well.
TEST(Tokenizer, AnAddedTokenSpelledInTheByteAlphabetDecodesToItsBytes) {
  Json json = good_definition();
  for (const char* content : {"\u0120x", "\u00C3\u00A9", "\u010A\u010A", "a b", "\u4E16", "\u00E9\u4E16"}) {
    add_token(json, content);
  }
  const auto tokenizer = tokenizer_of(json);
  const std::vector<std::string> expected = {"<|endoftext|>", " x",     "\u00E9",      "\n\n",
                                             "a b",           "\u4E16", "\u00E9\u4E16"};
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(tokenizer->token_bytes(259 + static_cast<int32_t>(i)), expected[i]);
  }
  EXPECT_EQ(tokenizer->encode("q\u0120xq"), (Ids{'q', 260, 'q'}));  // found as it is spelled
}

// The time per token must not grow with their number: 100,000 once took more than 25 seconds to load.
TEST(Tokenizer, ManyAddedTokensLoadAreFoundAndAreSaved) {
  constexpr int count = kSanitizer ? 5'000 : 100'000;
  Json json = good_definition();
  Json& tokens = json["added_tokens"];
  for (int i = 1; i < count; ++i) {
    tokens.push_back(tokens[0]);
    tokens.back()["content"] = format("<|token {}|>", i);
    tokens.back()["id"] = 259 + i;
  }
  const auto tokenizer = tokenizer_of(json);
  EXPECT_EQ(tokenizer->vocab_size(), 259 + count);
  std::string text;
  Ids ids;
  for (int i = 1; i < count; ++i) {
    text += format("<|token {}|>", i);
    ids.push_back(259 + i);
  }
  EXPECT_EQ(tokenizer->encode(text), ids);
  const TempFolder folder;
  tokenizer->save_pretrained(folder.path());
  EXPECT_EQ(load_tokenizer(folder.path())->encode(format("<|token {}|>", count - 1)), (Ids{259 + count - 1}));
}

TEST(Tokenizer, TokenTextEscapesInvisibleCharacters) {
  const auto bytes = make_byte_tokenizer();
  EXPECT_EQ(bytes->token_text('a'), "a");
  EXPECT_EQ(bytes->token_text('\n'), "\\n");
  EXPECT_EQ(bytes->token_text(0), "\\x00");
  EXPECT_EQ(bytes->token_text(0xE4), "\\xE4");
  EXPECT_EQ(bytes->token_text(256), "<|endoftext|>");
}

TEST(ByteTokenizer, IdsAreTheBytesAnd256EndsAText) {
  const auto tokenizer = make_byte_tokenizer();
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->eos_id(), 256);
  EXPECT_EQ(tokenizer->bos_id(), std::nullopt);
  EXPECT_EQ(tokenizer->encode("A\u00E9\n"), (Ids{0x41, 0xC3, 0xA9, 0x0A}));
  for (int32_t id = 0; id < 256; ++id)
    EXPECT_EQ(tokenizer->decode(Ids{id}), std::string(1, static_cast<char>(id)));
}

TEST(StreamDecoder, HoldsBackTheBytesOfACharacterUntilItIsComplete) {
  const auto bytes = make_byte_tokenizer();
  StreamDecoder stream(*bytes);
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.push(0x9F), "");
  EXPECT_EQ(stream.push(0x98), "");
  EXPECT_EQ(stream.push(0x80), "\U0001F600");
  EXPECT_EQ(stream.push('a'), "a");
  EXPECT_EQ(stream.finish(), "");
}

TEST(StreamDecoder, ReplacesBytesThatCannotBecomeACharacter) {
  const auto bytes = make_byte_tokenizer();
  StreamDecoder stream(*bytes);
  EXPECT_EQ(stream.push(0x80), "\uFFFD");
  EXPECT_EQ(stream.push(0xE4), "");
  EXPECT_EQ(stream.push(0xB8), "");
  EXPECT_EQ(stream.push('x'), "\uFFFDx");
  EXPECT_EQ(stream.push(0xC3), "");
  EXPECT_EQ(stream.push(0xC3), "\uFFFD");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
}

}  // namespace
}  // namespace stepforge::testing
