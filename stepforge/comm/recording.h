// One rank of a world of any size with no other rank alive: counts what would be sent.
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
  int64_t bytes = 0;  ///< of the whole that is gathered, reduced or broadcast; not times the number of ranks

  bool operator==(const Traffic&) const = default;
};

/// A gather fills all parts with this rank's, a reduction leaves this rank's values, a broadcast leaves the
/// bytes. Words of calls are checked as by other engines. Groups of one rank send nothing and are not
/// counted.
class RecordingWorld : public World {
 public:
  /// Throws Error for a rank outside the world.
  RecordingWorld(int rank, int size);
  ~RecordingWorld() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
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
  std::unique_ptr<World> alone_;  ///< its groups move this rank's bytes, and know of abort()
  Log log_;
};

}  // namespace stepforge
