// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/group_communicators.h"

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

GroupCommunicators::GroupCommunicators(World& world, const RankLayout& layout,
                                       const std::vector<GroupLane>& lanes, const std::string& name)
    : layout_(layout) {
  for (size_t i = 0; i < layout.groups.size(); ++i) meters_.push_back(std::make_unique<GroupMeter>());
  for (const GroupLane& lane : lanes) {
    const RankGroup& group = layout.groups.at(static_cast<size_t>(lane.group));
    communicators_[lane] = metered(world.group(format("{}{} {} from rank {}", name, group.name,
                                                      lane_name(lane.lane), group.ranks.front()),
                                               group.ranks),
                                   meter(lane.group), /*waits=*/lane.lane == Lane::compute);
  }
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
