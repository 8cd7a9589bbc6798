// SPDX-License-Identifier: Apache-2.0
// One rank of a simulated world of any size, which counts the bytes of its collectives.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "stepforge/comm/collective.h"
#include "stepforge/comm/communicator.h"

namespace stepforge {

/// All calls of one kind in groups of one name.
struct Traffic {
  std::string group;
  CollectiveKind kind = CollectiveKind::barrier;
  int64_t calls = 0;
  /// Size of the gathered, reduced or broadcast data, independent of the number of ranks; of an all-to-all,
  /// of what this rank sends, its own part included; of a paired call, of what this rank sends and receives.
  int64_t bytes = 0;

  bool operator==(const Traffic&) const = default;
};

/// An all-gather fills every part with this rank's part; reductions and broadcasts return this rank's values.
/// An all-to-all receives from each member what this rank sends to it, a send_receive what this rank sends, cut
/// or filled with zeros to the expected size; receive() gives zeros.
/// Arguments are checked as in other engines. Groups of one rank send nothing and are not counted.
class RecordingWorld : public World {
 public:
  /// Throws Error for a rank outside the world.
  RecordingWorld(int rank, int size);
  ~RecordingWorld() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string transport() const override { return "simulated ranks"; }
  bool simulated() const override { return true; }
  std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override;
  void abort(const std::string& reason) override;

  /// All calls so far, by group and kind. May be called while threads communicate.
  std::vector<Traffic> traffic() const;
  /// Counts from zero again.
  void reset_traffic();

 private:
  struct Log {
    mutable std::mutex mutex;
    std::map<std::pair<std::string, CollectiveKind>, Traffic> traffic;
  };
  class Member;

  int rank_;
  int size_;
  std::unique_ptr<World> alone_;  ///< its groups copy this rank's bytes and handle abort()
  Log log_;
};

}  // namespace stepforge
