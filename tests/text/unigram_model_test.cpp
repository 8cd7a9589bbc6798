// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/unigram_model.h"

#include <gtest/gtest.h>

namespace stepforge::testing {
namespace {

/// The first is a score of a tokenizer for which `tokenizers` has the second; it has the others unchanged.
TEST(UnigramModel, ScoresAreRoundedAsHuggingFaceReadsThem) {
  EXPECT_EQ(twice_rounded(-3.7401148518006915), -3.740114851800691);
  for (const double same :
       {-5.660441272203894, -5.689307379113059, -6.9873345507604165, 0.0, -0.5, -12.0, 1e22})
    EXPECT_EQ(twice_rounded(same), same);
}

}  // namespace
}  // namespace stepforge::testing
