// SPDX-License-Identifier: Apache-2.0
// The order in which the units of a mesh are used: recorded in forward, undone in reverse in backward.
//
// Every call of a unit leaves two events in the trace of the outermost call around it: it enters, it exits.
// Backward undoes events from the last to the first: an exit gathers the unit, an enter reduces its gradient.
// An autograd node on the call's outputs says when backward has come to the exit, one on its inputs when it
// has come to the enter. Autograd runs the nodes of a graph in the reverse order of their making, so
// whichever nodes a rank's backward skips (outputs that its loss does not use, inputs that need no gradient),
// the events recorded after the next node that it reaches are undone first: all ranks issue the same
// collectives in the same order.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <vector>

namespace stepforge {

class ShardedUnit;
class UnitRuntime;

/// One outermost call. The graph's nodes keep it alive as long as a backward can come.
class UnitTrace : public std::enable_shared_from_this<UnitTrace> {
 public:
  explicit UnitTrace(UnitRuntime& runtime) : runtime_(runtime) {}

  /// Returns the event's position.
  std::size_t add_enter(const std::shared_ptr<ShardedUnit>& unit);
  std::size_t add_exit(const std::shared_ptr<ShardedUnit>& unit);
  /// The event needs no undoing.
  void forget(std::size_t position) { events_.at(position).unit.reset(); }

  /// Backward has come to an event: undoes the later events, then this one. Throws Error if it is undone
  /// already.
  void reach(std::size_t position);
  /// Undoes the remaining events.
  void finish() { undo_down_to(0); }
  /// A backward begins.
  void rewind() { undone_ = events_.size(); }

 private:
  struct Event {
    std::weak_ptr<ShardedUnit> unit;  ///< its module and the graph's nodes own it
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
  /// The number of units added so far, and of the next one: the same on all ranks.
  int unit_count() const { return static_cast<int>(units_.size()); }
  /// Units that still exist, in the order in which they were made.
  std::vector<std::shared_ptr<ShardedUnit>> units() const;

  /// A unit's call begins. Throws Error after a backward that did not reach its end.
  void begin_call();
  /// The call has ended; `failed` by an exception. If the outermost call fails, nothing stays gathered.
  void end_call(bool failed) noexcept;
  /// The trace of the outermost call under way, made on first use.
  UnitTrace& trace();

  /// Whether this thread is in a backward, where a forward recomputes.
  static bool in_backward();
  /// The backward of this thread runs a node of `trace`.
  void enter_backward(const std::shared_ptr<UnitTrace>& trace);
  /// Starts the unit's reduction; first waits until few enough are under way.
  void reduce(const std::shared_ptr<ShardedUnit>& unit);
  /// Waits for all reductions.
  void finish_reductions();
  /// Ends a backward that an exception has stopped: nothing stays gathered, nothing is left to undo.
  void abandon_backward();

 private:
  void end_backward(int graph_task);
  void release_all() const;

  std::vector<std::weak_ptr<ShardedUnit>> units_;
  std::size_t depth_ = 0;
  std::shared_ptr<UnitTrace> trace_;
  std::map<int, std::vector<std::shared_ptr<UnitTrace>>> backwards_;  ///< traces touched, by graph task
  std::deque<std::weak_ptr<ShardedUnit>> reducing_;
};

}  // namespace stepforge
