// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/split_ratios.h"

#include <array>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"

namespace stepforge {
namespace {

using Bounds = std::array<int64_t, 4>;

TEST(SplitRatios, DivideTheDocumentsInOrderAsMegatronDoes) {
  // round(.969 * 1000) = 969, round(.999 * 1000) = 999
  EXPECT_EQ(SplitRatios::parse("969,30,1").bounds(1000), (Bounds{0, 969, 999, 1000}));
  EXPECT_EQ(SplitRatios::parse("99, 1, 0").bounds(10), (Bounds{0, 10, 10, 10}));
  EXPECT_EQ(SplitRatios::parse("1,1").bounds(5), (Bounds{0, 2, 5, 5})) << "half is rounded to even";
  EXPECT_EQ(SplitRatios::parse("0.5,0.25,0.25").bounds(8), (Bounds{0, 4, 6, 8}));
  EXPECT_EQ(SplitRatios::parse("100").bounds(7), (Bounds{0, 7, 7, 7}));
}

TEST(SplitRatios, CoverEveryDocumentOnce) {
  for (const char* text : {"969,30,1", "1,1,1", "1e-9,1,1", "3,0,7"}) {
    for (int64_t documents = 0; documents < 50; ++documents) {
      const Bounds bounds = SplitRatios::parse(text).bounds(documents);
      EXPECT_EQ(bounds.front(), 0);
      EXPECT_EQ(bounds.back(), documents);
      for (size_t i = 0; i < 3; ++i) EXPECT_LE(bounds[i], bounds[i + 1]);
    }
  }
}

TEST(SplitRatios, RefuseWhatIsNoShare) {
  for (const char* text :
       {"", ",", "a", "1,", "1,2,3,4", "-1,2", "nan,1", "inf,1", "0,1,1", "1 2", "1;2", "1e999,1"})
    EXPECT_THROW(SplitRatios::parse(text), UsageError) << text;
}

}  // namespace
}  // namespace stepforge
