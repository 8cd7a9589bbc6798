// SPDX-License-Identifier: Apache-2.0
// A device's own way to move bytes between ranks, such as NCCL between GPUs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stepforge/comm/call_failure.h"
#include "stepforge/comm/communicator.h"

namespace stepforge {

/// What a device's engine gets of a group.
struct DeviceGroup {
  std::unique_ptr<Communicator> control;  ///< of the same ranks, for host memory
  std::string name;                       ///< as in World::group(), for messages
  std::vector<int> ranks;                 ///< the members' ranks in the world, for messages
  std::shared_ptr<CallFailure> failure;   ///< of this rank
};

/// Thread-safe.
class DeviceEngine {
 public:
  DeviceEngine() = default;
  virtual ~DeviceEngine() = default;
  DeviceEngine(const DeviceEngine&) = delete;
  DeviceEngine& operator=(const DeviceEngine&) = delete;

  /// "NCCL"
  virtual std::string name() const = 0;

  /// A collective of the group's ranks, after which their transport has moved and summed some numbers for a test. The calls of the
  /// result on device memory are enqueued on the caller's current stream and return at once. They compare nothing with other ranks:
  /// all ranks must make the same calls, with sizes that match. A call without bytes does nothing, and a small message may end
  /// before its receiver has come. What a call throws on the device is set in `failure`, and thrown by later calls. Calls on host
  /// memory are for `control`; every rank must have bytes in an all_to_all or send_receive there, because one without them takes no
  /// part, and the others would wait for it. Throws PeerError, and UsageError if the ranks cannot be connected in this way.
  virtual std::unique_ptr<Communicator> group(DeviceGroup group) = 0;
};

}  // namespace stepforge
