// SPDX-License-Identifier: Apache-2.0
// Tokenizer files and texts made to do harm: each is refused with an error, or works within its limits.
#include <cstring>
#include <filesystem>
#include <functional>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/staged.h"
#include "stepforge/text/sentencepiece_tokenizer.h"
#include "stepforge/text/tokenizer_import.h"
#include "tests/support/allocation_meter.h"
#include "tests/support/sanitizer.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/text/definitions.h"

namespace stepforge::testing {
namespace {

using Ids = std::vector<int32_t>;

constexpr const char* kTwoTo63 = "9223372036854775808";

std::string message_for(const std::string& json) {
  return message_of<FormatError>([&] { tokenizer_of(json); });
}

TEST(Hostile, AFileOf200MebibytesIsRefusedUnread) {
  // 10 million tokens with their ids.
  const TempFolder folder;
  write_file_atomic(folder / "tokenizer.json", "{");
  std::filesystem::resize_file(folder / "tokenizer.json", uintmax_t{200} << 20);
  const AllocationMeter meter;
  EXPECT_CONTAINS(message_of<Error>([&] { load_tokenizer(folder.path()); }), "tokenizer.json", "134217728");
  EXPECT_LT(meter.peak(), 1U << 20);
}

TEST(Hostile, TenMillionTokensAreRefusedBeforeAllAreRead) {
  if (kSanitizer) GTEST_SKIP() << "takes seconds; the rule is tested with fewer elements too";
  std::string list = R"({"model": {"type": "Unigram", "vocab": [0)";
  const std::string thousand = [] {
    std::string text;
    for (int i = 0; i < 1000; ++i) text += ",0";
    return text;
  }();
  for (int i = 0; i < 10'000; ++i) list += thousand;
  const AllocationMeter meter;
  EXPECT_CONTAINS(message_for(list + "]}}"), "test/tokenizer.json", "more than 6000000 elements");
  // Doubling an array of values of 16 bytes.
  EXPECT_LT(meter.peak(), size_t{512} << 20);
}

TEST(Hostile, IdsOfTwoToThe63AreRefusedWithTheirPlace) {
  const std::string good = good_definition().dump();
  const auto with = [&](std::string_view old, const std::string& put) {
    std::string text = good;
    text.replace(text.find(old), old.size(), put);
    return message_for(text);
  };
  EXPECT_CONTAINS(with("\"bc\":258", format("\"bc\":{}", kTwoTo63)), "model.vocab", "\"bc\"", kTwoTo63);
  EXPECT_CONTAINS(with("\"id\":259", format("\"id\":{}", kTwoTo63)), "added_tokens[0].id", kTwoTo63);
  EXPECT_CONTAINS(message_for(format(
                      R"({{"model": {{"type": "Unigram", "unk_id": {}, "vocab": [["a", 0]]}}}})", kTwoTo63)),
                  "unk_id", kTwoTo63);
  EXPECT_CONTAINS(message_for(format(
                      R"({{"model": {{"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "",
              "max_input_chars_per_word": {}, "vocab": {{"a": 0}}}}}})",
                      kTwoTo63)),
                  "max_input_chars_per_word", kTwoTo63);
}

TEST(Hostile, LoneSurrogatesAndInvalidUtf8InAVocabularyAreRefusedWithTheOffset) {
  for (const char* key :
       {R"(\ud800)", R"(\udc00\ud800)", R"(\ud800\u0041)", "\xED\xA0\x80", "\xFF", "\xC0\x80"}) {
    EXPECT_CONTAINS(
        message_for(format(R"({{"model": {{"type": "BPE", "vocab": {{"{}": 0}}, "merges": []}}}})", key)),
        "test/tokenizer.json", "byte");
  }
  // A pair of surrogates is a character.
  const auto tokenizer =
      tokenizer_of(std::string(R"({"model": {"type": "BPE", "vocab": {"\ud83d\ude00": 0}, "merges": []}})"));
  EXPECT_EQ(tokenizer->encode("\U0001F600"), (Ids{0}));
  EXPECT_CONTAINS(message_of<FormatError>([&] { tokenizer->encode("a\xED\xA0\x80"); }), "byte 1");
}

TEST(Hostile, DeeplyNestedSequencesAreRefused) {
  for (const auto& [key, list] :
       {std::pair("normalizer", "normalizers"), std::pair("pre_tokenizer", "pretokenizers"),
        std::pair("decoder", "decoders"), std::pair("post_processor", "processors")}) {
    Json inner = {{"type", "Sequence"}, {list, Json::array()}};
    for (int i = 0; i < 100; ++i) inner = {{"type", "Sequence"}, {list, Json::array({inner})}};
    Json json = good_definition();
    json[key] = inner;
    EXPECT_CONTAINS(message_of<FormatError>([&] { tokenizer_of(json); }), "nested deeper than 32") << key;
  }
}

TEST(Hostile, MergesThatLeadBackToTheirPartsEnd) {
  // "aa" a -> "aaa", and a "aa" -> "aaa": two ways to the same token, and one of them to its own beginning.
  const Json model = {{"type", "BPE"},
                      {"vocab", {{"a", 0}, {"aa", 1}, {"aaa", 2}, {"aaaa", 3}}},
                      {"merges", {"aaa a", "a aaa", "a aa", "aa a", "aa aa", "a a"}}};
  const auto tokenizer = tokenizer_of(Json{{"model", model}});
  EXPECT_EQ(tokenizer->encode("aaaaaaaa"), (Ids{3, 3}));
  EXPECT_EQ(tokenizer->encode(std::string(100'000, 'a')).size(), 25'000U);
}

TEST(Hostile, OverlappingAddedTokensAreFoundFromTheLeftAndTheLongestFirst) {
  Json json = good_definition();
  json["added_tokens"] = Json::array();
  int32_t id = 259;
  for (const char* content : {"xy", "yz", "xyzx", "zzy", "zz"})
    json["added_tokens"].push_back(special_token_json(content, id++));
  const auto tokenizer = tokenizer_of(json);
  EXPECT_EQ(tokenizer->encode("xyz"), (Ids{259, 'z'}));
  EXPECT_EQ(tokenizer->encode("xyzxyz"), (Ids{261, 260}));
  EXPECT_EQ(tokenizer->encode("zzzyz"), (Ids{263, 'z', 260}));
}

TEST(Hostile, PrefixesOfAddedTokensTakeTimeInProportionToTheText) {
  // At each place, the beginnings of a thousand tokens stand.
  Json json = good_definition();
  json["added_tokens"] = Json::array();
  for (int32_t i = 0; i < 1000; ++i)
    json["added_tokens"].push_back(
        special_token_json(std::string(static_cast<size_t>(i) + 1, 'x') + "!", 259 + i));
  const auto tokenizer = tokenizer_of(json);
  EXPECT_EQ(tokenizer->encode(std::string(1 << 20, '!')).size(), size_t{1} << 20);
  EXPECT_EQ(tokenizer->encode(std::string(200'000, 'x')).size(), 200'000U);
  EXPECT_EQ(tokenizer->encode(std::string(1'500, 'x') + "!").back(), 259 + 999);
}

TEST(Hostile, AReplacementPatternThatBacktracksIsAnError) {
  Json json = good_definition();
  json["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", "(a|aa)+[bc]"}}}, {"content", ""}};
  const auto tokenizer = tokenizer_of(json);
  EXPECT_CONTAINS(message_of<Error>([&] { tokenizer->encode(std::string(200, 'a')); }), "normalizer.pattern",
                  "match limit");
}

/// A character map in which the letter a becomes `text`.
std::string map_of_a(const std::string& text) {
  std::vector<uint32_t> trie(257);
  trie[0] = uint32_t{1} << 10;  // the root's children are at 1 ^ byte
  const uint32_t leaf = 1 ^ uint32_t { 'a' };
  trie[leaf] = 0x100 | uint32_t{'a'} | (uint32_t{128} << 10);  // has a leaf at leaf ^ 128
  trie[leaf ^ 128] = 0x80000000;                               // text at 0
  std::string bytes(4, '\0');
  const auto size = static_cast<uint32_t>(trie.size() * 4);
  std::memcpy(bytes.data(), &size, 4);
  bytes.append(reinterpret_cast<const char*>(trie.data()), size);
  bytes += text;
  return bytes;
}

std::string base64(const std::string& bytes) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j)
      bits = bits << 8 | (i + j < bytes.size() ? static_cast<uint8_t>(bytes[i + j]) : 0U);
    for (size_t j = 0; j < 4; ++j) text += i + j > bytes.size() ? '=' : digits[bits >> (18 - 6 * j) & 63];
  }
  return text;
}

TEST(Hostile, ACharacterMapThatMultipliesTheTextIsAnErrorWithinBoundedMemory) {
  const auto tokenizer_with = [](const std::string& text) {
    Json json = good_definition();
    json["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", base64(map_of_a(text))}};
    return tokenizer_of(json);
  };
  EXPECT_EQ(tokenizer_with("bc")->encode("xaa"), (Ids{'x', 258, 258}));
  const auto tokenizer = tokenizer_with(std::string(1 << 16, 'z'));
  const std::string text(100'000, 'a');  // 6.5 GB
  const AllocationMeter meter;
  EXPECT_CONTAINS(message_of<Error>([&] { tokenizer->encode(text); }), "normaliz");
  EXPECT_LT(meter.peak(), size_t{128} << 20);
}

TEST(Hostile, ACutOrChangedModelOfSentencePieceIsRefusedOrWorks) {
  for (const char* name : {"unigram", "bpe_bytes"}) {
    const std::string whole = read_file(golden_folder("sentencepiece") / (std::string(name) + ".model"));
    for (size_t at = 0; at < whole.size(); at += 64) {
      EXPECT_CONTAINS(
          message_of<FormatError>([&] { make_sentencepiece_tokenizer(whole.substr(0, at), "m.model"); }),
          "m.model");
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ 0x5A);
      try {
        const auto tokenizer = make_sentencepiece_tokenizer(changed, "m.model");
        const Ids ids = tokenizer->encode("The caf\u00E9 is 3rd.");
        tokenizer->decode(ids);
        for (const int32_t id : ids) EXPECT_LT(id, tokenizer->vocab_size());
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()), "");
      }
    }
  }
}

TEST(Hostile, WhatTheLibraryOfSentencePieceThrowsIsAnErrorThatNamesTheFile) {
  const std::string model =
      read_file(source_dir() / "tests/fuzz/corpus/sentencepiece_fuzz/zero_length_piece");
  EXPECT_CONTAINS(message_of<FormatError>([&] { make_sentencepiece_tokenizer(model, "m.model"); }), "m.model",
                  "zero-length");
}

TEST(Hostile, RanksOfTwoToThe63InATiktokenFileAreRefused) {
  for (const char* rank : {"9223372036854775808", "18446744073709551616", "-1", "1.5", "0x1", ""}) {
    EXPECT_CONTAINS(message_of<FormatError>([&] {
                      tokenizer_json_of_tiktoken(format("YQ== {}\n", rank), "", "dir/r50k_base.tiktoken");
                    }),
                    "r50k_base.tiktoken:1", "4000000");
  }
}

TEST(Hostile, VocabularyAndMergesThatDoNotFitAreRefusedWithTheMerge) {
  const auto message = [](const std::string& vocab, const std::string& merges,
                          const std::string& config = "") {
    return message_of<FormatError>(
        [&] { tokenizer_of(tokenizer_json_of_gpt2(vocab, merges, config, "dir")); });
  };
  const std::string vocab = R"({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3})";
  EXPECT_CONTAINS(message(vocab, "a b\na c\n"), "merges[1]", "\"c\"", "vocabulary");
  EXPECT_CONTAINS(message(vocab, "a b\nb a\n"), "merges[1]", "\"ba\"", "vocabulary");
  EXPECT_CONTAINS(message(vocab, "a b\na b\n"), "merges[1]", "earlier");
  EXPECT_CONTAINS(message(vocab, "a \xFF\n"), "dir/merges.txt", "byte 2");
  EXPECT_CONTAINS(message(R"({"<|endoftext|>": "x"})", ""), "dir/vocab.json", "<|endoftext|>", "\"x\"");
  EXPECT_CONTAINS(message(R"({"<|endoftext|>": 9223372036854775808})", ""), "dir/vocab.json", kTwoTo63);
  EXPECT_CONTAINS(message(R"({"a": 0, "b": 0})", ""), "model.vocab", "id 0");
  EXPECT_CONTAINS(
      message(vocab, "", R"({"added_tokens_decoder": {"9223372036854775808": {"content": "x"}}})"),
      "added_tokens_decoder", kTwoTo63);
}

}  // namespace
}  // namespace stepforge::testing
