// SPDX-License-Identifier: Apache-2.0
// The results of NCCL's communicators, as of every engine's.
#include "tests/comm/exchanges_suite.h"
#include "tests/nccl/nccl_ranks.h"

namespace stepforge::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(OfNccl, Collectives,
                         ::testing::Combine(::testing::Values(as_nccl()), ::testing::Values(1, 2, 3, 5)),
                         collectives_name);
INSTANTIATE_TEST_SUITE_P(OfNccl, Groups, ::testing::Values(as_nccl()),
                         [](const auto& info) { return info.param.name; });

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
