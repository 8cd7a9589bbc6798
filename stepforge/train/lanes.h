// SPDX-License-Identifier: Apache-2.0
// Runs the lanes of a step program as threads, or as streams of a device. Operations of one lane run in list order; lanes run
// concurrently, ordered only by what each operation needs.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stepforge/step/program.h"
#include "stepforge/storage/lane_worker.h"
#include "stepforge/train/lane_streams.h"

namespace stepforge {

class Lanes {
 public:
  using Execute = std::function<void(std::size_t operation)>;
  using OnFailure = std::function<void(const std::string& reason)>;

  /// The compute lane is the thread that calls run(). Each other lane in use has a thread, unless the program
  /// has no groups: then no operation waits for another rank, and all run in list order. If `store` is on another device than the
  /// CPU, all operations are issued by that thread, each in the stream of its lane.
  explicit Lanes(const StepProgram& program, const ModelStore* store = nullptr);

  /// Runs the whole list. If an operation throws, no further one starts, `on_failure` is called once (it must
  /// wake every lane that waits for other ranks), and when all lanes have stopped the exception is rethrown.
  void run(const Execute& execute, const OnFailure& on_failure);
  /// How long the compute lane waited for other lanes before each operation of the last run.
  const std::vector<std::chrono::nanoseconds>& waits() const { return waits_; }

 private:
  /// `count` operations of another lane must have finished.
  struct Need {
    std::size_t lane = 0;
    uint32_t count = 0;
  };

  void run_lane(std::size_t lane, const Execute& execute, const OnFailure& on_failure);
  /// False if the run has failed.
  bool wait_for(const Need& need) const;
  /// Waits for all needs of an operation; false if the run has failed.
  bool wait_for_needs(std::size_t lane, std::size_t operation);
  void fail(std::exception_ptr failure, const std::string& reason, const OnFailure& on_failure);

  std::optional<LaneStreams> streams_;  ///< without them, all that follows

  std::array<std::vector<std::size_t>, kLanes> operations_;  ///< of each lane, in list order
  std::vector<std::vector<Need>> needs_;                     ///< of each operation
  std::vector<std::chrono::nanoseconds> waits_;              ///< of each operation, on the compute lane

  /// How many operations of a lane have finished in this run; kFailed is set in all when the run fails.
  static constexpr uint32_t kFailed = uint32_t{1} << 31;
  struct alignas(64) Progress {
    std::atomic<uint32_t> finished{0};
  };
  std::array<Progress, kLanes> progress_;

  std::mutex failure_mutex_;
  std::exception_ptr failure_;
  std::vector<std::pair<std::size_t, std::unique_ptr<LaneWorker>>> workers_;  ///< of the other lanes in use
};

}  // namespace stepforge
