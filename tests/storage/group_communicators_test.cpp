// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/group_communicators.h"

#include <array>

#include <gtest/gtest.h>

#include "tests/support/rank_threads.h"

namespace stepforge::testing {
namespace {

std::span<std::byte> bytes_of(std::array<int, 1>& value) {
  return std::as_writable_bytes(std::span(value));
}

/// Sends its rank to a neighbour in a pipeline, and receives that of the other one, on lanes of their own.
int pass(const GroupCommunicators& groups, int group, Lane send, Lane receive) {
  const auto size = static_cast<int>(groups.layout().groups.at(static_cast<size_t>(group)).ranks.size());
  const int self = groups.layout().index_in(group);
  const int next = (self + 1) % size;
  const int previous = (self + size - 1) % size;
  const bool to_next = send == Lane::send_next;
  const int to = to_next ? next : previous;
  const int from = to_next ? previous : next;
  std::array<int, 1> own = {self};
  std::array<int, 1> other = {-1};
  const auto sends = [&] { groups.at(group, send)->send(bytes_of(own), to > self ? 1 : 0); };
  const auto receives = [&] { groups.at(group, receive)->receive(bytes_of(other), from > self ? 1 : 0); };
  if (self == 0) {
    sends();
    receives();
  } else {
    receives();
    sends();
  }
  EXPECT_EQ(other[0], from);
  return other[0];
}

TEST(GroupCommunicators, LinkNeighboursOfAPipelineInBothDirections) {
  for (const int ranks : {2, 3, 4, 5}) {
    const auto faults = run_threads(ranks, [&](World& world) {
      const RankLayout layout = rank_layout({}, {.dims = {.pp = ranks}}, {world.rank(), ranks});
      const int group = layout.pipeline_group;
      std::vector<GroupLane> lanes = {
          {group, Lane::compute}, {group, Lane::send_next}, {group, Lane::receive_next}};
      if (ranks > 2) {
        lanes.push_back({group, Lane::send_previous});
        lanes.push_back({group, Lane::receive_previous});
      }
      const GroupCommunicators groups(world, layout, lanes);
      EXPECT_EQ(groups.lanes().size(), lanes.size());
      EXPECT_EQ(groups.lanes().front(), lanes.front());
      pass(groups, group, Lane::send_next, ranks == 2 ? Lane::receive_next : Lane::receive_previous);
      if (ranks > 2) pass(groups, group, Lane::send_previous, Lane::receive_next);
      return std::string();
    });
    for (const std::string& fault : faults) EXPECT_EQ(fault, "");
  }
}

}  // namespace
}  // namespace stepforge::testing
