// SPDX-License-Identifier: Apache-2.0
#include "stepforge/fsdp/unit_runtime.h"

#include <algorithm>
#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/fsdp/sharded_unit.h"

namespace stepforge {

namespace {

/// The number of reductions that may be under way while backward continues; each holds a whole gradient.
constexpr std::size_t kReductionsInFlight = 2;

}  // namespace

std::size_t UnitTrace::add_enter(const std::shared_ptr<ShardedUnit>& unit) {
  events_.push_back({unit, true});
  return events_.size() - 1;
}

std::size_t UnitTrace::add_exit(const std::shared_ptr<ShardedUnit>& unit) {
  events_.push_back({unit, false});
  return events_.size() - 1;
}

void UnitTrace::reach(std::size_t position) {
  runtime_.enter_backward(shared_from_this());
  if (position >= undone_) {
    throw Error("backward reached a unit's call a second time, after its gradient had been reduced");
  }
  undo_down_to(position);
}

void UnitTrace::undo_down_to(std::size_t position) {
  while (undone_ > position) undo(events_[--undone_]);
}

void UnitTrace::undo(const Event& event) {
  const auto unit = event.unit.lock();
  if (unit == nullptr) return;
  if (!event.enters) {
    unit->begin_backward(next_to_gather().get());
    return;
  }
  unit->end_backward();
  if (!used_before(unit.get(), undone_) && unit->reduces()) runtime_.reduce(unit);
}

bool UnitTrace::used_before(const ShardedUnit* unit, std::size_t position) const {
  return std::any_of(events_.begin(), events_.begin() + static_cast<std::ptrdiff_t>(position),
                     [unit](const Event& event) { return event.unit.lock().get() == unit; });
}

std::shared_ptr<ShardedUnit> UnitTrace::next_to_gather() const {
  for (std::size_t i = undone_; i-- > 0;) {
    if (events_[i].enters) continue;
    if (auto unit = events_[i].unit.lock()) return unit;
  }
  return nullptr;
}

std::vector<std::shared_ptr<ShardedUnit>> UnitRuntime::units() const {
  std::vector<std::shared_ptr<ShardedUnit>> units;
  for (const auto& weak : units_) {
    if (auto unit = weak.lock()) units.push_back(std::move(unit));
  }
  return units;
}

void UnitRuntime::begin_call() {
  if (!backwards_.empty() && !in_backward()) {
    throw Error("the last backward ended with an exception: call zero_grad() before the next forward");
  }
  ++depth_;
}

void UnitRuntime::end_call(bool failed) noexcept {
  if (--depth_ > 0) return;
  trace_ = nullptr;
  if (!failed) return;
  try {
    release_all();
  } catch (const std::exception&) {
    // A gather failed: every further collective throws its reason.
    return;
  }
}

UnitTrace& UnitRuntime::trace() {
  if (trace_ == nullptr) trace_ = std::make_shared<UnitTrace>(*this);
  return *trace_;
}

bool UnitRuntime::in_backward() {
  return torch::autograd::get_current_graph_task_id() != -1;
}

void UnitRuntime::enter_backward(const std::shared_ptr<UnitTrace>& trace) {
  const int graph_task = torch::autograd::get_current_graph_task_id();
  auto& traces = backwards_[graph_task];
  if (std::find(traces.begin(), traces.end(), trace) != traces.end()) return;
  if (traces.empty()) {
    torch::autograd::Engine::get_default_engine().queue_callback(
        [this, graph_task] { end_backward(graph_task); });
  }
  for (const auto& other : traces) other->finish();
  trace->rewind();
  traces.push_back(trace);
}

void UnitRuntime::end_backward(int graph_task) {
  for (const auto& trace : backwards_.at(graph_task)) trace->finish();
  backwards_.erase(graph_task);
  // Unused prefetches must not read masters while an optimizer updates them.
  for (const auto& unit : units()) unit->wait_for_gather();
  for (const auto& started : std::exchange(reducing_, {})) {
    const auto unit = started.lock();
    if (unit == nullptr) continue;
    if (unit->is_last_backward()) {
      unit->finish_reduction();
    } else {
      reducing_.push_back(unit);
    }
  }
}

void UnitRuntime::reduce(const std::shared_ptr<ShardedUnit>& unit) {
  while (reducing_.size() >= kReductionsInFlight) {
    const auto oldest = reducing_.front().lock();
    reducing_.pop_front();
    if (oldest != nullptr) oldest->finish_reduction();
  }
  unit->start_reduction();
  reducing_.push_back(unit);
}

void UnitRuntime::finish_reductions() {
  for (const auto& started : std::exchange(reducing_, {})) {
    if (const auto unit = started.lock()) unit->finish_reduction();
  }
}

void UnitRuntime::abandon_backward() {
  if (backwards_.empty()) return;
  backwards_.clear();
  release_all();
}

void UnitRuntime::release_all() const {
  for (const auto& unit : units()) unit->clear_uses();
}

}  // namespace stepforge
