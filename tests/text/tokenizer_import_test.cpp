// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/tokenizer_import.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/staged.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/text/definitions.h"

namespace stepforge::testing {
namespace {

using Ids = std::vector<int32_t>;

/// The files of GPT-2's time for the tokenizer good_definition().
void write_gpt2_files(const std::filesystem::path& folder) {
  const Json model = good_definition()["model"];
  write_file_atomic(folder / "vocab.json", model["vocab"].dump());
  std::string merges = "#version: 0.2\n";
  for (const Json& merge : model["merges"]) merges += merge.get<std::string>() + "\r\n";
  write_file_atomic(folder / "merges.txt", merges);
}

TEST(TokenizerImport, AFolderWithVocabAndMergesIsReadAsGpt2) {
  const TempFolder folder;
  write_gpt2_files(folder.path());
  const auto tokenizer = load_tokenizer(folder.path());
  // 259 is "<|endoftext|>", which the vocabulary lacks.
  EXPECT_EQ(tokenizer->encode("abc<|endoftext|>bc's"), (Ids{257, 259, 258, '\'', 's'}));
  EXPECT_EQ(tokenizer->eos_id(), 259);
  write_file_atomic(folder / "tokenizer_config.json", R"({"add_prefix_space": true, "eos_token": "abc"})");
  const auto other = load_tokenizer(folder.path());
  EXPECT_EQ(other->encode("bc"), (Ids{' ', 258}));
  EXPECT_EQ(other->eos_id(), 257);
}

TEST(TokenizerImport, WhatItSavesLoadsAsEqual) {
  const TempFolder folder;
  std::filesystem::create_directories(folder / "in");
  write_gpt2_files(folder / "in");
  const auto tokenizer = load_tokenizer(folder / "in");
  tokenizer->save_pretrained(folder / "out");
  EXPECT_EQ(load_tokenizer(folder / "out")->fingerprint(), tokenizer->fingerprint());
}

TEST(TokenizerImport, RefusesGpt2FilesOfOtherClassesAndBrokenOnes) {
  const auto message = [](std::string_view vocab, std::string_view merges, std::string_view config) {
    return message_of<FormatError>([&] { tokenizer_json_of_gpt2(vocab, merges, config, "dir"); });
  };
  EXPECT_CONTAINS(message("{}", "", R"({"tokenizer_class": "CLIPTokenizer"})"), "tokenizer_config.json",
                  "CLIPTokenizer", "tokenizer.json");
  EXPECT_CONTAINS(message("[]", "", ""), "dir/vocab.json", "object");
  EXPECT_CONTAINS(message("{}", "#version\na b\na b c\n", ""), "dir/merges.txt:3", "two parts");
  EXPECT_CONTAINS(message("{}", "", R"({"added_tokens_decoder": {"x": {}}})"), "added_tokens_decoder",
                  "\"x\"");
}

/// The 256 bytes, then "ab", "abc".
std::string tiktoken_text() {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (unsigned byte = 0; byte < 256; ++byte)
    text += format("{}{}== {}\n", digits.substr(byte >> 2, 1), digits.substr((byte & 3) << 4, 1), byte);
  return text + "YWI= 256\nYWJj 257\n";
}

TEST(TokenizerImport, ATiktokenFileGivesItsRanksAndTheSpecialTokensOfItsName) {
  const TempFolder folder;
  write_file_atomic(folder / "cl100k_base.tiktoken", tiktoken_text());
  const auto tokenizer = load_tokenizer(folder / "cl100k_base.tiktoken");
  EXPECT_EQ(tokenizer->encode("abcab<|endofprompt|>"), (Ids{257, 256, 100276}));
  EXPECT_EQ(tokenizer->eos_id(), 100257);
  EXPECT_EQ(tokenizer->vocab_size(), 100277);
  EXPECT_EQ(tokenizer->decode(Ids{257, 100257, 0xFF}), "abc<|endoftext|>\xFF");
}

TEST(TokenizerImport, ATiktokenFileOfAnotherNameNeedsItsPattern) {
  const TempFolder folder;
  write_file_atomic(folder / "mine.tiktoken", tiktoken_text());
  EXPECT_CONTAINS(message_of<FormatError>([&] { load_tokenizer(folder / "mine.tiktoken"); }), "mine.tiktoken",
                  "pat_str", "cl100k_base");
  write_file_atomic(folder / "tokenizer_config.json",
                    R"({"pat_str": "b|[^b]+", "special_tokens": {"<e>": 300}})");
  EXPECT_EQ(load_tokenizer(folder / "mine.tiktoken")->encode("abc<e>"), (Ids{'a', 'b', 'c', 300}));
}

TEST(TokenizerImport, RefusesBrokenTiktokenLines) {
  const auto message = [](const std::string& text) {
    return message_of<FormatError>([&] { tokenizer_json_of_tiktoken(text, "", "dir/cl100k_base.tiktoken"); });
  };
  const std::string good = tiktoken_text();
  EXPECT_CONTAINS(message(good.substr(0, good.size() - 5)), "cl100k_base.tiktoken:258", "rank");
  EXPECT_CONTAINS(message(good.substr(0, 300)), "cl100k_base.tiktoken");
  EXPECT_CONTAINS(message(good + "YW= 258\n"), ":259", "base64");
  EXPECT_CONTAINS(message(good + "YWJjZA== 99999999\n"), ":259", "4000000");
  EXPECT_CONTAINS(message(good + "YWI= 300\n"), ":259", "300", "earlier");
  EXPECT_CONTAINS(message(good + "YWJjZA== 256\n"), ":259", "256", "earlier");
  EXPECT_CONTAINS(message(""), "0x00", "cut off");
}

}  // namespace
}  // namespace stepforge::testing
