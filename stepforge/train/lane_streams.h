// SPDX-License-Identifier: Apache-2.0
// Runs the lanes of a step program as streams of a device: this thread issues the whole list, and the device runs each lane in
// order. What an operation needs from another lane becomes an event.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "stepforge/step/program.h"
#include "stepforge/storage/unit_store.h"

namespace stepforge {

class LaneStreams {
 public:
  LaneStreams(const StepProgram& program, const ModelStore& store);

  /// Calls execute(operation) for the whole list, each with the stream of its lane as the current one. Everything is ordered
  /// after what the current stream has when it begins, and what the current stream gets afterwards is ordered after everything.
  void run(const std::function<void(std::size_t operation)>& execute);

 private:
  void issue(const c10::Stream& compute, const std::function<void(std::size_t operation)>& execute);
  /// `compute` waits for all lanes.
  void join(const c10::Stream& compute) const;

  c10::Device device_;
  std::vector<std::size_t> lanes_;               ///< of each operation
  std::vector<std::vector<std::size_t>> needs_;  ///< of each operation: the last ones of other lanes
  std::vector<std::optional<c10::Event>> done_;  ///< of operations that another lane needs
  std::array<std::optional<c10::Stream>, kLanes> streams_;  ///< of the lanes in use besides compute
};

}  // namespace stepforge
