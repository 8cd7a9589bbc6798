// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/memory.h"

#include <array>
#include <deque>

#include "stepforge/step/happens_before.h"

namespace stepforge {

namespace {

/// The largest workspaces that may exist in other lanes while an operation runs. Call workspace_beside() once
/// for every operation, in list order.
class OtherLanes {
 public:
  OtherLanes(const StepProgram& program, const HappensBefore& before) : program_(program), before_(before) {
    for (std::size_t i = 0; i < program.operations.size(); ++i) lanes_.at(before.lane(i)).push_back(i);
  }

  int64_t workspace_beside(std::size_t i) {
    int64_t bytes = 0;
    for (std::size_t other = 0; other < kLanes; ++other)
      if (other != before_.lane(i)) bytes += largest_beside(i, other);
    return bytes;
  }

 private:
  /// The range of a lane that may run at the same time as the latest operation of another lane. Both ends
  /// only move forward.
  struct Window {
    std::size_t end = 0;
    /// Positions whose workspaces decrease; the first has the largest workspace of the window.
    std::deque<std::size_t> largest;
  };

  int64_t largest_beside(std::size_t i, std::size_t other) {
    const std::vector<std::size_t>& lane = lanes_.at(other);
    const auto workspace = [&](std::size_t position) {
      return program_.operations[lane[position]].workspace;
    };
    auto& [end, largest] = windows_.at(before_.lane(i)).at(other);
    for (; end < lane.size() && !before_(i, lane[end]); ++end) {
      while (!largest.empty() && workspace(largest.back()) <= workspace(end)) largest.pop_back();
      largest.push_back(end);
    }
    const auto begin = static_cast<std::size_t>(before_.finished(i, other));
    while (!largest.empty() && largest.front() < begin) largest.pop_front();
    return largest.empty() ? 0 : workspace(largest.front());
  }

  const StepProgram& program_;
  const HappensBefore& before_;
  std::array<std::vector<std::size_t>, kLanes> lanes_;
  /// [lane of the latest operation][other lane]
  std::array<std::array<Window, kLanes>, kLanes> windows_;
};

}  // namespace

int64_t MemoryAccount::persistent_bytes() const {
  int64_t sum = 0;
  for (const auto& [kind, bytes] : persistent) sum += bytes;
  return sum;
}

MemoryAccount account(const StepProgram& program) {
  MemoryAccount result;
  for (const Buffer& buffer : program.buffers)
    if (buffer.kind == BufferKind::host)
      result.host_bytes += buffer.bytes;
    else if (buffer.persistent)
      result.persistent[buffer.kind] += buffer.bytes;
  const HappensBefore before(program);
  OtherLanes others(program, before);
  std::map<BufferKind, int64_t> live = result.persistent;
  int64_t live_bytes = result.persistent_bytes();
  const auto add = [&](const std::vector<int>& buffers, int64_t sign) {
    for (const int buffer : buffers) {
      const Buffer& added = element(program.buffers, buffer);
      live[added.kind] += sign * added.bytes;
      live_bytes += sign * added.bytes;
    }
  };
  result.peak_bytes = live_bytes;
  result.at_peak = live;
  std::vector<std::size_t> beside;  // that may still run, as far as the compute lane knows
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    if (program.operations[i].lane == Lane::compute) {
      std::erase_if(beside, [&](std::size_t other) {
        if (!before(other, i)) return false;
        add(program.operations[other].frees, -1);
        return true;
      });
    }
    add(program.operations[i].allocates, 1);
    const int64_t workspace = program.operations[i].workspace + others.workspace_beside(i);
    if (live_bytes + workspace > result.peak_bytes) {
      result.peak_bytes = live_bytes + workspace;
      result.peak_operation = i;
      result.workspace_at_peak = workspace;
      result.at_peak = live;
    }
    if (frees_beside_compute(program.operations[i].kind))
      beside.push_back(i);
    else
      add(program.operations[i].frees, -1);
    result.live_after.push_back(live_bytes);
  }
  return result;
}

}  // namespace stepforge
