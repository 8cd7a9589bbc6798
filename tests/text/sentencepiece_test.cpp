// SPDX-License-Identifier: Apache-2.0
// Recorded from Python's sentencepiece by tools/oracle/make_sentencepiece_golden.py.
#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/json.h"
#include "stepforge/base/staged.h"
#include "stepforge/text/sentencepiece_tokenizer.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/text/definitions.h"

namespace stepforge::testing {
namespace {

using Ids = std::vector<int32_t>;

class SentencePiece : public ::testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path model() const { return golden_folder("sentencepiece") / (GetParam() + ".model"); }
};

TEST_P(SentencePiece, GivesTheIdsAndTheTextOfTheLibraryAtOnceAndAsAStream) {
  const auto tokenizer = load_tokenizer(model());
  const Json golden = read_json_file(golden_folder("sentencepiece") / (GetParam() + ".json"));
  EXPECT_EQ(tokenizer->vocab_size(), golden["size"].get<int32_t>());
  EXPECT_EQ(tokenizer->eos_id(), golden["eos"].get<int32_t>());
  EXPECT_EQ(tokenizer->bos_id(), golden["bos"].get<int32_t>());
  ASSERT_GE(golden["cases"].size(), 20U);
  for (const Json& test : golden["cases"]) {
    const auto ids = test[1].get<Ids>();
    EXPECT_EQ(tokenizer->encode(test[0].get<std::string>()), ids) << test[0];
    EXPECT_EQ(tokenizer->decode(ids), test[2].get<std::string>());
    StreamDecoder stream(*tokenizer);
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.push(id);
    EXPECT_EQ(streamed + stream.finish(), test[2].get<std::string>());
  }
}

TEST_P(SentencePiece, ASavedFolderLoadsAsEqual) {
  const TempFolder folder;
  const auto tokenizer = load_tokenizer(model());
  tokenizer->save_pretrained(folder / "saved");
  EXPECT_EQ(load_tokenizer(folder / "saved")->fingerprint(), tokenizer->fingerprint());
}

TEST_P(SentencePiece, RefusesACutModelIdsBeyondTheVocabularyAndTextThatIsNotUtf8) {
  const std::string whole = read_file(model());
  for (const size_t size : {size_t{0}, size_t{1}, whole.size() / 2, whole.size() - 1}) {
    EXPECT_CONTAINS(
        message_of<FormatError>([&] { make_sentencepiece_tokenizer(whole.substr(0, size), "m.model"); }),
        "m.model", "SentencePiece");
  }
  const auto tokenizer = load_tokenizer(model());
  EXPECT_CONTAINS(message_of<Error>([&] { tokenizer->decode(Ids{100000}); }), "100000");
  EXPECT_CONTAINS(message_of<FormatError>([&] { tokenizer->encode("a\xFF"); }), "byte 1");
}

/// Recorded with transformers 5.24.
TEST(SentencePieceFolder, FindsTheTokensThatTheFilesBesideItListAndKeepsTheFiles) {
  const TempFolder folder;
  const std::string model = read_file(golden_folder("sentencepiece") / "bpe_bytes.model");
  write_file_atomic(folder / "tokenizer.model", model);
  const auto with_config = [&](Json config) {
    config.update({{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}});
    write_file_atomic(folder / "tokenizer_config.json", config.dump());
    return load_tokenizer(folder.path());
  };
  const auto plain = with_config(Json::object());
  EXPECT_EQ(plain->encode("the water"), (Ids{262, 337, 341, 340, 276}));
  EXPECT_EQ(plain->encode("<s> the</s>water"), (Ids{1, 262, 2, 360, 341, 340, 276}));
  EXPECT_TRUE(plain->special_tokens().before.empty());
  EXPECT_EQ(with_config({{"legacy", true}})->encode("</s>water"), (Ids{2, 337, 341, 340, 276}));
  const auto around = with_config({{"add_bos_token", true}, {"add_eos_token", true}});
  EXPECT_EQ(around->special_tokens().before, (Ids{1}));
  EXPECT_EQ(around->special_tokens().after, (Ids{2}));

  write_file_atomic(folder / "added_tokens.json", R"({"<|im_end|>": 420})");
  const auto added = with_config({{"chat_template", "x"}});
  EXPECT_EQ(added->vocab_size(), 421);
  EXPECT_EQ(added->encode("a<|im_end|> the<|im_end|>the"), (Ids{261, 420, 262, 420, 260}));
  EXPECT_EQ(added->decode(Ids{261, 420, 262, 420, 260}), "a<|im_end|> the<|im_end|>the");
  EXPECT_NE(added->fingerprint(), plain->fingerprint());
  added->save_pretrained(folder / "saved");
  EXPECT_EQ(load_tokenizer(folder / "saved")->fingerprint(), added->fingerprint());
  for (const char* name : {"tokenizer.model", "tokenizer_config.json", "added_tokens.json"})
    EXPECT_EQ(read_file(folder / "saved" / name), read_file(folder / name));

  write_file_atomic(folder / "added_tokens.json", R"({"<|im_end|>": 500})");
  EXPECT_CONTAINS(message_of<FormatError>([&] { load_tokenizer(folder.path()); }), "added_tokens.json",
                  "<|im_end|>", "500", "420");
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, SentencePiece, ::testing::Values("unigram", "bpe_bytes"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace stepforge::testing
