// SPDX-License-Identifier: Apache-2.0
#include "stepforge/checkpoint/staged_memory.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

namespace stepforge::testing {
namespace {

constexpr size_t kBytes = size_t{40} << 20;

/// How many of the pages of `memory` exist.
int64_t existing_pages(const std::shared_ptr<std::byte[]>& memory) {
  std::vector<unsigned char> pages(kBytes / static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  EXPECT_EQ(mincore(memory.get(), kBytes, pages.data()), 0);
  return std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; });
}

TEST(StagedMemory, ItsPagesExistOnceTheyAreMade) {
  const auto memory = map_memory(kBytes);
  EXPECT_EQ(existing_pages(memory), 0);
  make_pages({memory.get(), kBytes}, {});
  EXPECT_EQ(existing_pages(memory), static_cast<int64_t>(kBytes) / sysconf(_SC_PAGESIZE));
}

TEST(StagedMemory, MakingPagesEndsWhenItIsToStop) {
  const auto memory = map_memory(kBytes);
  std::stop_source stop;
  stop.request_stop();
  make_pages({memory.get(), kBytes}, stop.get_token());
  EXPECT_EQ(existing_pages(memory), 0);
}

TEST(StagedMemory, MakingPagesChangesNoByte) {
  const auto memory = map_memory(kBytes);
  memory[kBytes - 1] = std::byte{7};
  make_pages({memory.get(), kBytes}, {});
  EXPECT_EQ(memory[kBytes - 1], std::byte{7});
}

}  // namespace
}  // namespace stepforge::testing
