// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/staged.h"
#include "stepforge/text/tokenizer.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/text/definitions.h"

namespace stepforge::testing {
namespace {

void write(const std::filesystem::path& path, std::string_view text) {
  write_file_atomic(path, text);
}

TEST(LoadTokenizer, ASavedTokenizerLoadsAsEqual) {
  const TempFolder folder;
  for (const auto& original : {make_byte_tokenizer(), tokenizer_of(good_definition()),
                               load_tokenizer(golden_folder("llama3_like"))}) {
    original->save_pretrained(folder / "saved");
    const auto loaded = load_tokenizer(folder / "saved");
    EXPECT_EQ(loaded->fingerprint(), original->fingerprint());
    EXPECT_EQ(loaded->vocab_size(), original->vocab_size());
    EXPECT_EQ(loaded->eos_id(), original->eos_id());
    EXPECT_EQ(loaded->bos_id(), original->bos_id());
    EXPECT_EQ(loaded->encode("abc <|endoftext|> \u4E16"), original->encode("abc <|endoftext|> \u4E16"));
    for (int32_t id = 0; id < loaded->vocab_size(); ++id)
      EXPECT_EQ(loaded->token_bytes(id), original->token_bytes(id));
    EXPECT_EQ(load_tokenizer(folder / "saved" / "tokenizer.json")->fingerprint(), original->fingerprint());
    std::filesystem::remove_all(folder / "saved");
  }
}

TEST(LoadTokenizer, FingerprintsOfDifferentTokenizersDiffer) {
  Json other = good_definition();
  other["model"]["ignore_merges"] = true;
  EXPECT_NE(tokenizer_of(good_definition())->fingerprint(), tokenizer_of(other)->fingerprint());
  EXPECT_NE(tokenizer_of(good_definition())->fingerprint(), make_byte_tokenizer()->fingerprint());
}

TEST(LoadTokenizer, SavedFilesNameTheEndOfText) {
  const TempFolder folder;
  tokenizer_of(good_definition())->save_pretrained(folder.path());
  const Json config = read_json_file(folder / "tokenizer_config.json");
  EXPECT_EQ(config["eos_token"], "<|endoftext|>");
  EXPECT_EQ(config["added_tokens_decoder"]["259"]["content"], "<|endoftext|>");
  EXPECT_EQ(read_json_file(folder / "special_tokens_map.json")["eos_token"], "<|endoftext|>");
}

TEST(LoadTokenizer, OtherTokenizerFilesAreSavedUnchanged) {
  const TempFolder folder;
  std::filesystem::create_directories(folder / "in");
  write(folder / "in/tokenizer.json", good_definition().dump(3));
  write(folder / "in/tokenizer_config.json",
        "{ \"eos_token\": {\"content\": \"abc\"},\n \"bos_token\":\"<|endoftext|>\", \"x\":1}");
  write(folder / "in/special_tokens_map.json", "{}\n\n");
  write(folder / "in/chat_template.jinja", "{{ messages }}");
  const auto tokenizer = load_tokenizer(folder / "in");
  EXPECT_EQ(tokenizer->eos_id(), 257);
  EXPECT_EQ(tokenizer->bos_id(), 259);
  tokenizer->save_pretrained(folder / "out");
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "in")) {
    EXPECT_EQ(read_file(folder / "out" / entry.path().filename()), read_file(entry.path()));
    ++files;
  }
  EXPECT_EQ(files, 4);
}

TEST(LoadTokenizer, RefusesAFolderWithoutTokenizerAndAMissingPath) {
  const TempFolder folder;
  EXPECT_CONTAINS(message_of<UsageError>([&] { return load_tokenizer(folder.path()); }),
                  folder.path().string(), "tokenizer.json");
  EXPECT_CONTAINS(message_of<UsageError>([&] { return load_tokenizer(folder / "nowhere"); }), "nowhere");
}

TEST(LoadTokenizer, RefusesAConfigThatDoesNotMatch) {
  const TempFolder folder;
  write(folder / "tokenizer.json", good_definition().dump());
  write(folder / "tokenizer_config.json", R"({"eos_token": "</s>"})");
  EXPECT_CONTAINS(message_of<FormatError>([&] { return load_tokenizer(folder.path()); }),
                  "tokenizer_config.json", "eos_token", "</s>");
  write(folder / "tokenizer_config.json", R"({"bos_token": 7})");
  EXPECT_CONTAINS(message_of<FormatError>([&] { return load_tokenizer(folder.path()); }),
                  "tokenizer_config.json", "bos_token", "7");
  write(folder / "tokenizer_config.json", "[");
  EXPECT_CONTAINS(message_of<FormatError>([&] { return load_tokenizer(folder.path()); }),
                  "tokenizer_config.json");
}

TEST(LoadTokenizer, SavingIntoAFileIsAnError) {
  const TempFolder folder;
  write(folder / "taken", "x");
  EXPECT_CONTAINS(message_of<Error>([&] { return make_byte_tokenizer()->save_pretrained(folder / "taken"); }),
                  "taken");
}

}  // namespace
}  // namespace stepforge::testing
