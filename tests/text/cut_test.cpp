// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/cut.h"

#include <gtest/gtest.h>

#include "stepforge/text/unicode_forms.h"

namespace stepforge::testing {
namespace {

using Pieces = std::vector<std::string_view>;

Pieces cut(CutBehavior behavior, bool invert = false) {
  SplitPattern::Scratch scratch;
  return Cut(SplitPattern("\\-", "test"), behavior, invert).pieces("the-final--countdown-", scratch);
}

TEST(Cut, TheBehaviorDecidesWhatBecomesOfAMatch) {
  EXPECT_EQ(cut(CutBehavior::isolated), (Pieces{"the", "-", "final", "-", "-", "countdown", "-"}));
  EXPECT_EQ(cut(CutBehavior::removed), (Pieces{"the", "final", "countdown"}));
  EXPECT_EQ(cut(CutBehavior::contiguous), (Pieces{"the", "-", "final", "--", "countdown", "-"}));
  EXPECT_EQ(cut(CutBehavior::merged_with_previous), (Pieces{"the-", "final-", "-", "countdown-"}));
  EXPECT_EQ(cut(CutBehavior::merged_with_next), (Pieces{"the", "-final", "-", "-countdown", "-"}));
}

TEST(Cut, AnInvertedPatternMatchesWhatLiesBetweenItsMatches) {
  EXPECT_EQ(cut(CutBehavior::removed, true), (Pieces{"-", "-", "-", "-"}));
  EXPECT_EQ(cut(CutBehavior::merged_with_previous, true), (Pieces{"the", "-final", "-", "-countdown", "-"}));
}

TEST(Cut, EachCharacterOfAKindIsAMatch) {
  SplitPattern::Scratch scratch;
  const Cut spaces(is_white_space, CutBehavior::removed);
  EXPECT_EQ(spaces.pieces(" a\u3000b \n", scratch), (Pieces{"a", "b"}));
  EXPECT_EQ(spaces.pieces(" \t", scratch), Pieces{});
}

}  // namespace
}  // namespace stepforge::testing
