// SPDX-License-Identifier: Apache-2.0
// Recorded from Python's sentencepiece by tools/oracle/make_sentencepiece_golden.py.
#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/json.h"
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

INSTANTIATE_TEST_SUITE_P(Tokenizer, SentencePiece, ::testing::Values("unigram", "bpe_bytes"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace stepforge::testing
