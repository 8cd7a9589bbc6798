// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/memory.h"

#include <algorithm>
#include <array>
#include <deque>

#include "stepforge/step/happens_before.h"

namespace stepforge {

namespace {

int64_t bytes_of(const StepProgram& program, const std::vector<int>& buffers) {
  int64_t bytes = 0;
  for (const int buffer : buffers) bytes += element(program.buffers, buffer).bytes;
  return bytes;
}

/// The operations of one lane, with running sums.
struct LaneOperations {
  std::vector<std::size_t> operations;
  std::vector<int64_t> allocated{0};  ///< by the first i operations
  std::vector<int64_t> freed{0};
};

/// The stretch of a lane that may run beside the latest operation of another lane. Both ends only move
/// forward.
struct Window {
  std::size_t end = 0;
  std::deque<std::size_t>
      largest;  ///< positions of falling workspaces: the first is the largest of the window
};

/// What may run beside an operation, in other lanes.
struct Beside {
  int64_t workspace = 0;  ///< the sum over lanes of the largest one
  int64_t buffers = 0;
  std::vector<int> listed;  ///< those buffers, if asked for
};

/// Walks the list; every operation is asked for once, in list order.
class OtherLanes {
 public:
  OtherLanes(const StepProgram& program, const HappensBefore& before) : program_(program), before_(before) {
    for (std::size_t i = 0; i < program.operations.size(); ++i) {
      LaneOperations& lane = lanes_.at(before.lane(i));
      lane.operations.push_back(i);
      lane.allocated.push_back(lane.allocated.back() + bytes_of(program, program.operations[i].allocates));
      lane.freed.push_back(lane.freed.back() + bytes_of(program, program.operations[i].frees));
    }
  }

  Beside next(std::size_t i, bool list_buffers = false) {
    const std::size_t own = before_.lane(i);
    Beside beside;
    for (std::size_t other = 0; other < kLanes; ++other) {
      if (other != own) add(i, other, list_buffers, beside);
    }
    ++passed_.at(own);
    return beside;
  }

 private:
  void add(std::size_t i, std::size_t other, bool list_buffers, Beside& beside) {
    const LaneOperations& lane = lanes_.at(other);
    const std::size_t own = before_.lane(i);
    Window& window = windows_.at(own).at(other);
    const auto begin = static_cast<std::size_t>(before_.finished(i, other));
    // Operations before `passed` precede this one in the list: their allocations are counted there, and so
    // are their frees, which may not have happened yet. For operations behind it is the other way round.
    const std::size_t passed = passed_.at(other);
    for (; window.end < lane.operations.size() && !before_(i, lane.operations[window.end]); ++window.end) {
      while (!window.largest.empty() && workspace(lane, window.largest.back()) <= workspace(lane, window.end))
        window.largest.pop_back();
      window.largest.push_back(window.end);
    }
    while (!window.largest.empty() && window.largest.front() < begin) window.largest.pop_front();
    if (!window.largest.empty()) beside.workspace += workspace(lane, window.largest.front());
    beside.buffers += lane.freed[passed] - lane.freed[begin];
    beside.buffers += lane.allocated[window.end] - lane.allocated[passed];
    if (!list_buffers) return;
    for (std::size_t k = begin; k < window.end; ++k) {
      const Operation& operation = program_.operations[lane.operations[k]];
      const std::vector<int>& buffers = k < passed ? operation.frees : operation.allocates;
      beside.listed.insert(beside.listed.end(), buffers.begin(), buffers.end());
    }
  }

  int64_t workspace(const LaneOperations& lane, std::size_t position) const {
    return program_.operations[lane.operations[position]].workspace;
  }

  const StepProgram& program_;
  const HappensBefore& before_;
  std::array<LaneOperations, kLanes> lanes_;
  std::array<std::array<Window, kLanes>, kLanes>
      windows_;                               ///< of the first lane's latest operation, in the second
  std::array<std::size_t, kLanes> passed_{};  ///< operations of each lane that precede in the list
};

/// The buffers live at the peak, by kind.
std::map<BufferKind, int64_t> kinds_at_peak(const StepProgram& program, const HappensBefore& before,
                                            const MemoryAccount& memory) {
  std::map<BufferKind, int64_t> live = memory.persistent;
  const auto add = [&](const std::vector<int>& buffers, int64_t sign) {
    for (const int buffer : buffers)
      live[element(program.buffers, buffer).kind] += sign * element(program.buffers, buffer).bytes;
  };
  OtherLanes others(program, before);
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    add(program.operations[i].allocates, 1);
    const Beside beside = others.next(i, i == memory.peak_operation);
    if (i == memory.peak_operation) {
      add(beside.listed, 1);
      break;
    }
    add(program.operations[i].frees, -1);
  }
  return live;
}

}  // namespace

int64_t MemoryAccount::persistent_bytes() const {
  int64_t sum = 0;
  for (const auto& [kind, bytes] : persistent) sum += bytes;
  return sum;
}

MemoryAccount account(const StepProgram& program) {
  MemoryAccount result;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.kind == BufferKind::host) {
      result.host_bytes += buffer.bytes;
    } else if (buffer.persistent) {
      result.persistent[buffer.kind] += buffer.bytes;
    }
  }
  const HappensBefore before(program);
  OtherLanes others(program, before);
  int64_t live = result.persistent_bytes();
  result.peak_bytes = live;
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    const Operation& operation = program.operations[i];
    live += bytes_of(program, operation.allocates);
    const Beside beside = others.next(i);
    const int64_t workspace = operation.workspace + beside.workspace;
    if (live + beside.buffers + workspace > result.peak_bytes) {
      result.peak_bytes = live + beside.buffers + workspace;
      result.peak_operation = i;
      result.workspace_at_peak = workspace;
    }
    live -= bytes_of(program, operation.frees);
    result.live_after.push_back(live);
  }
  result.at_peak = kinds_at_peak(program, before, result);
  return result;
}

}  // namespace stepforge
