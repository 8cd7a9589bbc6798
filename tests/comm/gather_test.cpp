// SPDX-License-Identifier: Apache-2.0
#include "stepforge/comm/gather.h"

#include <array>

#include <gtest/gtest.h>

#include "tests/support/rank_threads.h"

namespace stepforge::testing {
namespace {

TEST(Gather, EveryRankGetsTheTextsOfAllRanks) {
  const auto results = run_threads(3, [](World& world) -> std::string {
    const auto group = world.group("all", {0, 1, 2});
    const std::vector<std::string> texts = {"", std::string(5000, 'x'), std::string("a\0b", 3)};
    if (gather_texts(*group, texts[static_cast<std::size_t>(world.rank())]) != texts) return "other texts";
    const std::vector<std::string> none(3);
    return gather_texts(*group, "") == none ? "" : "not empty";
  });
  EXPECT_EQ(results, std::vector<std::string>(3));
}

TEST(Gather, ATooLongTextIsRefusedOnEveryRankBeforeItIsSent) {
  const auto results = run_threads(2, [](World& world) -> std::string {
    const auto group = world.group("all", {0, 1});
    const std::string own(world.rank() == 0 ? (std::size_t{1} << 24) + 1 : 1, 'x');
    try {
      gather_texts(*group, own);
      return "accepted";
    } catch (const Error& refusal) {
      if (std::string(refusal.what()).find("16777217 bytes") == std::string::npos) return refusal.what();
    }
    group->barrier();  // the group still works
    return "";
  });
  EXPECT_EQ(results, std::vector<std::string>(2));
}

TEST(Gather, ValuesAreInRankOrder) {
  const auto results = run_threads(3, [](World& world) -> std::string {
    const auto group = world.group("all", {0, 1, 2});
    const std::array own = {world.rank(), world.rank() + 10};
    return gather_values(*group, own) == std::vector<int>{0, 10, 1, 11, 2, 12} ? "" : "other values";
  });
  EXPECT_EQ(results, std::vector<std::string>(3));
}

}  // namespace
}  // namespace stepforge::testing
