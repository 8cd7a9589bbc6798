// The lanes of a step program as threads: operations of one lane run in list order, lanes run beside each
// other, tied only by what the list says an operation needs.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "stepforge/step/program.h"

namespace stepforge {

class Lanes {
 public:
  using Execute = std::function<void(std::size_t operation)>;
  using OnFailure = std::function<void(const std::string& reason)>;

  /// The compute lane is the thread that calls run(). Each other lane in use has a thread of its own, unless
  /// the program has no groups: then nothing waits for another rank and all run in list order.
  explicit Lanes(const StepProgram& program);
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  /// Runs the whole list. If an operation throws, no further one starts, `on_failure` is called once (it must
  /// wake what waits for other ranks), and when all lanes have come to rest the exception is thrown again.
  void run(const Execute& execute, const OnFailure& on_failure);

 private:
  static constexpr std::size_t kLanes = 5;

  /// So many operations of another lane must have finished.
  struct Need {
    std::size_t lane = 0;
    uint32_t count = 0;
  };

  void serve(std::size_t lane);
  void run_lane(std::size_t lane);
  /// False if the run has failed meanwhile.
  bool wait_for(const Need& need) const;
  void fail(std::exception_ptr failure, const std::string& reason);

  std::array<std::vector<std::size_t>, kLanes> operations_;  ///< of each lane, in list order
  std::vector<std::vector<Need>> needs_;                     ///< of each operation

  /// How many operations of a lane have finished in this run; kFailed is set in all when the run fails.
  static constexpr uint32_t kFailed = uint32_t{1} << 31;
  struct alignas(64) Progress {
    std::atomic<uint32_t> finished{0};
  };
  std::array<Progress, kLanes> progress_;

  // Between runs, and for the failure:
  std::mutex mutex_;
  std::condition_variable changed_;
  const Execute* execute_ = nullptr;
  const OnFailure* on_failure_ = nullptr;
  std::size_t run_ = 0;  ///< counts runs
  std::size_t lanes_at_work_ = 0;
  bool stopping_ = false;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

}  // namespace stepforge
