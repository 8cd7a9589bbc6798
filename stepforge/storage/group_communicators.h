// SPDX-License-Identifier: Apache-2.0
// The communicators of a rank's groups, one for each lane that uses a group.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "stepforge/comm/communicator.h"
#include "stepforge/comm/metered_communicator.h"
#include "stepforge/kernels/compute_device.h"
#include "stepforge/layout/rank_layout.h"
#include "stepforge/step/collectives.h"
#include "stepforge/storage/staged_communicator.h"

namespace stepforge {

/// Destroy it before the World, and before the buffers of its collectives, which an engine may use until
/// then.
class GroupCommunicators {
 public:
  /// The groups of a single rank.
  GroupCommunicators() = default;
  /// A collective of all ranks of the world. `name` distinguishes these groups from others of the same ranks.
  /// Calls with memory of `device` are enqueued on the current stream, by the device's own engine (comm/device_engine.h) if it has one
  /// in `engine`, otherwise by the world's (staged_communicator.h). Throws PeerError.
  GroupCommunicators(World& world, const RankLayout& layout, const std::vector<GroupLane>& lanes,
                     const std::string& name = "", const ComputeDevice& device = cpu_device());

  /// Waits for the calls that are enqueued.
  ~GroupCommunicators();
  GroupCommunicators(const GroupCommunicators&) = delete;
  GroupCommunicators& operator=(const GroupCommunicators&) = delete;

  /// Makes all collectives of this rank's groups fail with `reason`, including those in which other ranks
  /// wait. May be called from any thread.
  void abort(const std::string& reason) const;

  /// Where this rank stands in its groups; without units for a single rank.
  const RankLayout& layout() const { return layout_; }
  /// In an order in which all ranks can use one after the other: links between two ranks of a pipeline come last.
  const std::vector<GroupLane>& lanes() const { return lanes_; }
  /// On which ranks compute.
  const ComputeDevice& compute() const { return compute_; }
  c10::Device device() const { return compute_.device; }
  /// Null for group -1, a group of one rank. Throws Error if this lane of the group was not asked for.
  Communicator* at(int group, Lane lane) const;
  /// Counts the bytes of all lanes of a group, and the time for which the compute lane waits for it.
  GroupMeter& meter(int group) const { return *meters_.at(static_cast<size_t>(group)); }
  /// Throws what the first enqueued call threw that failed, if one did. Calls that have not run yet are not waited for.
  void rethrow_failure() const;

 private:
  std::unique_ptr<Communicator> made(World& world, const std::string& name, const std::vector<int>& ranks,
                                     const GroupLane& lane);

  ComputeDevice compute_ = cpu_device();
  RankLayout layout_;
  std::shared_ptr<CallFailure> failure_ =
      std::make_shared<CallFailure>([this](const std::string& reason) { abort(reason); });
  std::vector<std::unique_ptr<GroupMeter>> meters_;  ///< of each group
  std::vector<GroupLane> lanes_;
  std::map<GroupLane, std::unique_ptr<Communicator>> communicators_;
};

/// The groups of a single rank.
const GroupCommunicators& single_rank_groups();

}  // namespace stepforge
