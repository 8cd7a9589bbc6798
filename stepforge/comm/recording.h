// SPDX-License-Identifier: Apache-2.0
// One rank of a simulated world of any size: counts the bytes that it would send.
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

/// The calls of one kind in the groups of one name.
struct Traffic {
  std::string group;
  CollectiveKind kind = CollectiveKind::barrier;
  int64_t calls = 0;
  int64_t bytes = 0;  ///< that are gathered, reduced or broadcast; not multiplied by the number of ranks

  bool operator==(const Traffic&) const = default;
};

/// A gather fills all parts with this rank's part, a reduction and a broadcast leave this rank's values.
/// Arguments are checked as in other engines. Groups of one rank send nothing and are not counted.
class RecordingWorld : public World {
 public:
  /// Throws Error for a rank outside the world.
  RecordingWorld(int rank, int size);
  ~RecordingWorld() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string transport() const override { return "simulated ranks"; }
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
  std::unique_ptr<World> alone_;  ///< its groups move this rank's bytes and handle abort()
  Log log_;
};

}  // namespace stepforge
