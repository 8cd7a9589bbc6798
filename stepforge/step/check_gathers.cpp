// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"

namespace stepforge {

namespace {

/// The slot of one unit.
struct Slot {
  enum class State : uint8_t { free, filling, ready };
  State state = State::free;
  int start = kNever;
  int wait = kNever;
  int release = kNever;
  std::vector<int> uses;  // since the wait
};

class Gathers : RuleWalk {
 public:
  explicit Gathers(const CheckedProgram& checked) : RuleWalk(checked), slots_(program_.units.size()) {}

  void check() {
    walk([this](const Operation& operation) { visit(operation); });
    for (std::size_t u = 0; u < slots_.size(); ++u)
      if (slots_[u].state != Slot::State::free)
        fail_at(slots_[u].start, format("unit {} is never released", program_.units[u].name));
  }

 private:
  void visit(const Operation& operation) {
    switch (operation.kind) {
      case OpKind::gather_start:
        return start(operation, element(slots_, operation.unit));
      case OpKind::gather_wait:
        return wait(element(slots_, operation.unit));
      case OpKind::release:
        return release(element(slots_, operation.unit));
      case OpKind::update:
        return update(element(slots_, operation.unit));
      default:
        if (!reads_weights(program_, operation)) return;
        for (const int u : block(operation).units) use(u);
    }
  }

  void start(const Operation& operation, Slot& slot) {
    if (unit(operation.unit).resident) fail("the unit is resident: there is nothing to gather");
    if (slot.state != Slot::State::free) require_never(slot.start, "the unit is already gathered");
    require_order(slot.release);
    if (const int64_t bytes = unit(operation.unit).gathered_bytes; operation.bytes != bytes)
      fail(format("it gathers {} bytes, but the shards have {}", operation.bytes, bytes));
    slot.state = Slot::State::filling;
    slot.start = here();
  }

  void wait(Slot& slot) {
    if (slot.state != Slot::State::filling) fail("no gather_start of the unit is under way");
    require_order(slot.start);
    slot.state = Slot::State::ready;
    slot.wait = here();
    slot.uses.clear();
  }

  void use(int u) {
    const std::string& name = unit(u).name;
    if (unit(u).resident) return;
    Slot& slot = element(slots_, u);
    if (slot.state == Slot::State::filling)
      fail(format("unit {} is not gathered yet: no gather_wait after {}", name, text(slot.start)));
    if (slot.state == Slot::State::free) {
      fail(slot.release == kNever
               ? format("unit {} is not gathered", name)
               : format("unit {} is not gathered: {} has released it", name, text(slot.release)));
    }
    require_order(slot.wait);
    slot.uses.push_back(here());
  }

  void release(Slot& slot) {
    if (slot.state != Slot::State::ready) fail("the unit is not gathered");
    require_order(slot.wait);
    for (const int use : slot.uses) require_order(use);
    slot.state = Slot::State::free;
    slot.release = here();
  }

  void update(const Slot& slot) const {
    if (slot.state != Slot::State::free)
      fail(format("the copy gathered by {} is still in use and would be stale", text(slot.start)));
    require_order(slot.release);
  }

  std::vector<Slot> slots_;
};

}  // namespace

void check_gathers(const CheckedProgram& checked) {
  Gathers(checked).check();
}

}  // namespace stepforge
