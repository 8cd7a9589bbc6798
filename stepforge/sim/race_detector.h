// SPDX-License-Identifier: Apache-2.0
// Finds accesses to memory that no event orders, by vector clocks (Mattern, 1989) over streams. Whether two accesses are ordered
// follows from the order in which the host enqueued work and events, not from how fast streams ran: a race is found in every
// run, also in those whose result was right.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "stepforge/sim/memory_map.h"

namespace stepforge::sim {

/// Of each stream how much of its work is known to have finished; streams that are missing: none.
class Clock {
 public:
  uint32_t of(int stream) const {
    return static_cast<size_t>(stream) < finished_.size() ? finished_[static_cast<size_t>(stream)] : 0;
  }
  void set(int stream, uint32_t position);
  /// Afterwards it knows what either of them knew.
  void join(const Clock& other);

 private:
  std::vector<uint32_t> finished_;
};

/// A piece of work in a stream.
struct Work {
  int stream = 0;
  uint32_t position = 0;                    ///< counted from 1
  std::shared_ptr<const std::string> name;  ///< for messages
};

class RaceDetector {
 public:
  /// `work`, which knows `clock`, reads or writes `range`. Throws Error that names both sides if an earlier access to some of it,
  /// one of the two a write, is not known to have finished.
  void read(Range range, const Work& work, const Clock& clock);
  void write(Range range, const Work& work, const Clock& clock);
  /// Its accesses have finished, and its next owner knows.
  void forget(Range range);
  /// What write() would throw if work that knows `clock` wrote `range` next; "" if nothing.
  std::string fault_of_reuse(Range range, const Work& next, const Clock& clock) const;

 private:
  /// The accesses to an interval, which begins at its key in the map.
  struct Interval {
    const std::byte* end = nullptr;
    Work last_write;          ///< position 0: none
    std::vector<Work> reads;  ///< since then, the last one of each stream
  };
  using Intervals = std::map<const std::byte*, Interval>;

  /// Makes `address` a border of intervals, and returns the first interval that does not end before it.
  Intervals::iterator split(const std::byte* address);
  /// The intervals of `range`, after filling its gaps with new ones.
  std::pair<Intervals::iterator, Intervals::iterator> covering(Range range);
  /// "" if the first work is known to have finished.
  static std::string fault(const Work& earlier, const char* did, const Work& later, const char* does,
                           const Clock& clock);
  static void require_order(const Work& earlier, const char* did, const Work& later, const char* does,
                            const Clock& clock);

  Intervals intervals_;
};

}  // namespace stepforge::sim
