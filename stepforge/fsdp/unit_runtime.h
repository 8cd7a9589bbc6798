// SPDX-License-Identifier: Apache-2.0
// The order in which the units of a mesh are used: recorded in forward, undone in reverse in backward.
//
// Every call of a unit records two events, enter and exit, in the trace of the outermost call around it.
// Backward undoes events from the last to the first: undoing an exit gathers the unit, undoing an enter
// reduces its gradient. An autograd node on the call's outputs reports when backward has reached the exit,
// one on its inputs when it has reached the enter. A rank's backward may skip nodes: outputs that its loss
// does not use, inputs that need no gradient. Autograd runs the nodes of a graph in the reverse order of
// their creation, and the next node that backward reaches first undoes all events recorded after it. So all
// ranks issue the same collectives in the same order.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <vector>

namespace stepforge {

class ShardedUnit;
class UnitRuntime;

/// The events of one outermost call. The nodes of its graph own it.
class UnitTrace : public std::enable_shared_from_this<UnitTrace> {
 public:
  explicit UnitTrace(UnitRuntime& runtime) : runtime_(runtime) {}

  /// Returns the event's position.
  std::size_t add_enter(const std::shared_ptr<ShardedUnit>& unit);
  std::size_t add_exit(const std::shared_ptr<ShardedUnit>& unit);
  /// Removes an event that backward need not undo.
  void forget(std::size_t position) { events_.at(position).unit.reset(); }

  /// Backward has reached an event: undoes the later events, then this one. Throws Error if it is already
  /// undone.
  void reach(std::size_t position);
  /// Undoes the remaining events.
  void finish() { undo_down_to(0); }
  /// Starts a backward: no event is undone.
  void rewind() { undone_ = events_.size(); }

 private:
  struct Event {
    std::weak_ptr<ShardedUnit> unit;  ///< owned by its module and the graph's nodes
    bool enters = false;
  };

  void undo_down_to(std::size_t position);
  void undo(const Event& event);
  /// Whether events before `position` use the unit.
  bool used_before(const ShardedUnit* unit, std::size_t position) const;
  /// The unit that backward needs next; null if none.
  std::shared_ptr<ShardedUnit> next_to_gather() const;

  UnitRuntime& runtime_;
  std::vector<Event> events_;
  std::size_t undone_ = 0;  ///< events from here on are undone
};

/// The state that the units of one mesh share on a rank.
class UnitRuntime {
 public:
  void add(const std::shared_ptr<ShardedUnit>& unit) { units_.push_back(unit); }
  /// The number of units added so far, which is the number of the next unit: the same on all ranks.
  int unit_count() const { return static_cast<int>(units_.size()); }
  /// The units that still exist, in the order of fully_shard calls.
  std::vector<std::shared_ptr<ShardedUnit>> units() const;

  /// A unit's call begins. Throws Error after a backward that did not end.
  void begin_call();
  /// The call has ended; `failed`: by an exception. If the outermost call fails, frees all gathered values.
  void end_call(bool failed) noexcept;
  /// The trace of the outermost running call, created on first use.
  UnitTrace& trace();

  /// Whether this thread runs a backward; a forward in it is a recomputation.
  static bool in_backward();
  /// This thread's backward has reached a node of `trace`.
  void enter_backward(const std::shared_ptr<UnitTrace>& trace);
  /// Starts the unit's reduction; if too many are under way, waits for the oldest first.
  void reduce(const std::shared_ptr<ShardedUnit>& unit);
  /// Waits for all reductions.
  void finish_reductions();
  /// Ends a backward that threw an exception: frees gathered values and drops the events left to undo.
  void abandon_backward();

 private:
  void end_backward(int graph_task);
  void release_all() const;

  std::vector<std::weak_ptr<ShardedUnit>> units_;
  std::size_t depth_ = 0;
  std::shared_ptr<UnitTrace> trace_;
  std::map<int, std::vector<std::shared_ptr<UnitTrace>>> backwards_;  ///< traces reached, by graph task
  std::deque<std::weak_ptr<ShardedUnit>> reducing_;
};

}  // namespace stepforge
