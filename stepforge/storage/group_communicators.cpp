// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/group_communicators.h"

#include <algorithm>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/comm/device_engine.h"

namespace stepforge {

namespace {

/// Two neighbours of a pipeline and the direction of their messages.
struct Link {
  int from = 0;  ///< global ranks
  int to = 0;
  GroupLane lane;
};

Link link_of(const RankLayout& layout, const GroupLane& lane) {
  const std::vector<int>& ranks = layout.groups.at(static_cast<size_t>(lane.group)).ranks;
  const auto size = static_cast<int>(ranks.size());
  const bool next = lane.lane == Lane::send_next || lane.lane == Lane::receive_next;
  const int peer =
      ranks.at(static_cast<size_t>((layout.index_in(lane.group) + (next ? 1 : size - 1)) % size));
  const bool sends = lane.lane == Lane::send_next || lane.lane == Lane::send_previous;
  return sends ? Link{layout.id.rank, peer, lane} : Link{peer, layout.id.rank, lane};
}

}  // namespace

GroupCommunicators::GroupCommunicators(World& world, const RankLayout& layout,
                                       const std::vector<GroupLane>& lanes, const std::string& name,
                                       const ComputeDevice& device)
    : compute_(device), layout_(layout) {
  for (size_t i = 0; i < layout.groups.size(); ++i) meters_.push_back(std::make_unique<GroupMeter>());
  std::vector<Link> links;
  for (const GroupLane& lane : lanes) {
    if (is_pipeline_lane(lane.lane)) {
      links.push_back(link_of(layout, lane));
      continue;
    }
    lanes_.push_back(lane);
    const RankGroup& group = layout.groups.at(static_cast<size_t>(lane.group));
    const std::string of_lane =
        format("{}{} {} from rank {}", name, group.name, lane_name(lane.lane), group.ranks.front());
    communicators_[lane] = made(world, of_lane, group.ranks, lane);
  }
  // Both ends wait for each other, so all ranks make their links in one order.
  std::ranges::sort(links, {}, [](const Link& link) { return std::pair(link.from, link.to); });
  for (const auto& [from, to, lane] : links) {
    lanes_.push_back(lane);
    const std::string& group = layout.groups.at(static_cast<size_t>(lane.group)).name;
    communicators_[lane] = made(world, format("{}{} from rank {} to {}", name, group, from, to),
                                {std::min(from, to), std::max(from, to)}, lane);
  }
}

GroupCommunicators::~GroupCommunicators() {
  failure_->close();  // a call that fails while the others are destroyed
  // An engine may wait for the other ranks, which destroy theirs in this order too.
  for (const GroupLane& lane : lanes_) communicators_.erase(lane);
}

std::unique_ptr<Communicator> GroupCommunicators::made(World& world, const std::string& name,
                                                       const std::vector<int>& ranks, const GroupLane& lane) {
  const auto measured = [&](std::unique_ptr<Communicator> communicator) {
    return metered(std::move(communicator), meter(lane.group), /*waits=*/lane.lane == Lane::compute);
  };
  std::unique_ptr<Communicator> engine = world.group(name, ranks);
  if (device().is_cpu()) return measured(std::move(engine));
  // Of an engine of the device the time is that of issuing; what is staged takes its time in a call of the host.
  if (compute_.engine != nullptr)
    return measured(compute_.engine->group({std::move(engine), name, ranks, failure_}));
  return staged(measured(std::move(engine)), compute_, failure_);
}

void GroupCommunicators::rethrow_failure() const {
  failure_->rethrow();
}

void GroupCommunicators::abort(const std::string& reason) const {
  for (const auto& [lane, communicator] : communicators_) communicator->abort(reason);
}

Communicator* GroupCommunicators::at(int group, Lane lane) const {
  if (group < 0) return nullptr;
  const auto found = communicators_.find({group, lane});
  if (found == communicators_.end()) {
    throw Error(format("there is no communicator for lane {} of group {}", lane_name(lane),
                       layout_.groups.at(static_cast<size_t>(group)).name));
  }
  return found->second.get();
}

const GroupCommunicators& single_rank_groups() {
  static const GroupCommunicators groups;
  return groups;
}

}  // namespace stepforge
