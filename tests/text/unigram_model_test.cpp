// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/unigram_model.h"

#include <gtest/gtest.h>

#include "stepforge/base/json.h"
#include "stepforge/base/json_reader.h"

namespace stepforge::testing {
namespace {

/// The first is a score of a tokenizer for which `tokenizers` has the second; it has the others unchanged.
TEST(UnigramModel, ScoresAreRoundedAsHuggingFaceReadsThem) {
  EXPECT_EQ(twice_rounded(-3.7401148518006915), -3.740114851800691);
  for (const double same :
       {-5.660441272203894, -5.689307379113059, -6.9873345507604165, 0.0, -0.5, -12.0, 1e22})
    EXPECT_EQ(twice_rounded(same), same);
}

/// As `tokenizers` 0.23 divides it; with the exact score of "ther" the single "b" comes first.
TEST(UnigramModel, TheLastBitOfAScoreDecidesBetweenEqualSums) {
  const Json definition = Json::parse(R"({"type": "Unigram", "unk_id": 0, "byte_fallback": false, "vocab": [
      ["<unk>", 0.0], ["ther", -3.7401148518006915], ["b", -6.9873345507604165], ["bb", -5.689307379113059]]})");
  const UnigramModel model(JsonReader(definition, "test"));
  std::vector<int32_t> ids;
  model.append_word("therbbbbb", ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 3, 3, 2}));
}

}  // namespace
}  // namespace stepforge::testing
