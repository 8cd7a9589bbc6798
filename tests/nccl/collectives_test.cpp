// SPDX-License-Identifier: Apache-2.0
// The results of NCCL's communicators, as of every engine's.
#include "tests/comm/exchanges_suite.h"
#include "tests/nccl/nccl_ranks.h"

namespace stepforge::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(OfNccl, Collectives,
                         ::testing::Combine(::testing::Values(as_nccl()), ::testing::Values(1, 2, 3, 5)),
                         collectives_name);
// Among its rules is one that NCCL does not have: a small message may end before its receiver comes.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Groups);

TEST(NcclGroups, OverlappingGroupsWorkTogether) {
  const auto results = as_nccl().run(4, [](World& world) {
    const int row = world.rank() / 2 * 2;
    const int column = world.rank() % 2;
    const auto rows = world.group("rows", {row, row + 1});
    const auto columns = world.group("columns", {column, column + 2});
    std::vector<int32_t> values = {1 << world.rank()};
    rows->all_reduce(writable_bytes_of(values), DType::i32);
    columns->all_reduce(writable_bytes_of(values), DType::i32);
    return format("{} {} {}", rows->rank(), columns->rank(), values[0]);
  });
  EXPECT_EQ(results, (std::vector<std::string>{"0 0 15", "1 0 15", "0 1 15", "1 1 15"}));
}

TEST(NcclGroups, GroupsOfTheSameRanksRunConcurrently) {
  const auto results = as_nccl().run(3, [](World& world) {
    const auto first = world.group("first", {0, 1, 2});
    const auto second = world.group("second", {0, 1, 2});
    const auto sums = [](Communicator& group, int32_t start) {
      for (int32_t i = 0; i < 30; ++i) {
        std::vector<int32_t> values(9000, start + i + group.rank());
        group.all_reduce(writable_bytes_of(values), DType::i32);
        if (values.front() != 3 * (start + i) + 3 || values.back() != values.front()) return false;
      }
      return true;
    };
    bool second_is_right = false;
    std::thread other([&] { second_is_right = sums(*second, 5000); });
    const bool first_is_right = sums(*first, 0);
    other.join();
    return format("{} {}", first_is_right, second_is_right);
  });
  for (const std::string& result : results) EXPECT_EQ(result, "true true");
}

TEST(NcclSums, AreFormedInPiecesIfTheyExceedTheStagingMemory) {
  const auto results = as_nccl().run(2, [](World& world) {
    const auto group = world.group("all", {0, 1});
    constexpr std::size_t kCount = 5 << 20;  // of fp64 in each part: 40 MiB, of which 32 MiB fit
    std::vector<double> whole(2 * kCount);
    for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<double>(i * (world.rank() + 1U));
    std::vector<double> part(kCount);
    group->reduce_scatter(bytes_of(whole), writable_bytes_of(part), DType::f64);
    for (std::size_t i = 0; i < kCount; ++i)
      if (part[i] != 3.0 * static_cast<double>(world.rank() * kCount + i)) return format("wrong at {}", i);
    return std::string();
  });
  EXPECT_EQ(results, std::vector<std::string>(2));
}

}  // namespace
}  // namespace stepforge::testing
