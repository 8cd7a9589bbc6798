// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/huge_pages.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace stepforge::testing {
namespace {

TEST(HugePages, LargeMemoryBeginsAtAHugePageAndSmallWhereItsTypeMay) {
  struct alignas(64) Line {
    int value;
  };
  for (const size_t count : {1, 100, 1 << 16}) {
    const std::vector<Line, HugePages<Line>> lines(count, Line{7});
    const size_t alignment = count * sizeof(Line) >= size_t{2} << 20 ? size_t{2} << 20 : 64;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(lines.data()) % alignment, 0U);
    EXPECT_EQ(lines.back().value, 7);
  }
}

}  // namespace
}  // namespace stepforge::testing
