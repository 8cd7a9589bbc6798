// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/effects.h"

#include <vector>

#include <gtest/gtest.h>

namespace stepforge::testing {
namespace {

/// What the accesses of a list must wait for, of each access.
struct Access {
  int operation;
  Lane lane;
  bool exclusive;
};
std::vector<std::vector<int>> waits_of(const std::vector<Access>& accesses) {
  AccessOrder order;
  std::vector<std::vector<int>> waits;
  for (const auto& [operation, lane, exclusive] : accesses) {
    std::vector<int>& own = waits.emplace_back();
    order.add(operation, lane, exclusive, [&](int earlier) { own.push_back(earlier); });
  }
  return waits;
}

TEST(AccessOrder, ReadersWaitForTheLastWriterOnly) {
  using enum Lane;
  EXPECT_EQ(waits_of({{0, compute, true}, {1, copy, false}, {2, gather, false}}),
            (std::vector<std::vector<int>>{{}, {0}, {0}}));
}

TEST(AccessOrder, AWriterWaitsForTheLastReaderOfEachLaneAndForTheWriterBefore) {
  using enum Lane;
  EXPECT_EQ(waits_of({{0, compute, true},
                      {1, copy, false},
                      {2, copy, false},
                      {3, gather, false},
                      {4, compute, true},
                      {5, compute, false}}),
            (std::vector<std::vector<int>>{{}, {0}, {0}, {0}, {0, 3, 2}, {4}}));
}

}  // namespace
}  // namespace stepforge::testing
