// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/equal_calls.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <string>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/comm/gather.h"
#include "stepforge/step/lane_calls.h"

namespace stepforge {

namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// "call 3 of group fsdp, lane gather is "gather layers.1" on rank 0 and none on rank 2".
std::string first_difference(const std::string& name, const std::vector<int>& ranks,
                             const std::vector<std::string>& lists, size_t member) {
  const std::vector<std::string> first = lines_of(lists[0]);
  const std::vector<std::string> other = lines_of(lists[member]);
  const auto at = static_cast<size_t>(std::ranges::mismatch(first, other).in1 - first.begin());
  const auto call = [&](const std::vector<std::string>& calls) {
    return at < calls.size() ? format("\"{}\"", calls[at]) : "none";
  };
  return format("call {} of {} is {} on rank {} and {} on rank {}", at + 1, name, call(first), ranks[0],
                call(other), ranks[member]);
}

void compare(Communicator& group, int own_rank, const std::string& name, const std::string& own) {
  const std::vector<std::string> hashes = gather_texts(group, content_hash(std::as_bytes(std::span(own))));
  const auto other = std::ranges::find_if(hashes, [&](const std::string& hash) { return hash != hashes[0]; });
  if (other == hashes.end()) return;
  const std::vector<std::string> lists = gather_texts(group, own);
  const std::vector<int> ranks = gather_values(group, std::array{own_rank});
  throw Error(
      format("the ranks do not agree: {}; start all ranks with the same program, configuration and files",
             first_difference(name, ranks, lists, static_cast<size_t>(other - hashes.begin()))));
}

}  // namespace

void require_equal_calls(const StepProgram& program, const GroupCommunicators& groups) {
  for (const GroupLane& lane : groups.lanes()) {
    const std::string& group = groups.layout().groups.at(static_cast<size_t>(lane.group)).name;
    compare(*groups.at(lane.group, lane.lane), groups.layout().id.rank,
            format("group {}, lane {}", group, lane_name(lane.lane)), join(lane_calls(program, lane), "\n"));
  }
}

}  // namespace stepforge
