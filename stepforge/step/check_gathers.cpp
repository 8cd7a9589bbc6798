#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"
#include "stepforge/step/passes.h"

namespace stepforge {

namespace {

/// One unit's way through its slot. Indices of operations; -1 before the first.
struct Slot {
  enum class State : uint8_t { free, filling, ready };
  State state = State::free;
  int start = -1;
  int wait = -1;
  int release = -1;
  std::vector<std::size_t> uses;  // since the wait
};

class Gathers {
 public:
  explicit Gathers(const CheckedProgram& checked)
      : checked_(checked), program_(checked.program), slots_(program_.units.size()) {}

  void check() {
    for (at_ = 0; at_ < program_.operations.size(); ++at_) visit(program_.operations[at_]);
    for (std::size_t u = 0; u < slots_.size(); ++u) {
      if (slots_[u].state != Slot::State::free) {
        checked_.fail(static_cast<std::size_t>(slots_[u].start),
                      format("unit {} is never released", program_.units[u].name));
      }
    }
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const { checked_.fail(at_, reason); }
  const ProgramUnit& unit(int index) const { return program_.units[static_cast<std::size_t>(index)]; }
  Slot& slot(int index) { return slots_[static_cast<std::size_t>(index)]; }
  std::string text(int operation) const { return checked_.text(static_cast<std::size_t>(operation)); }
  void require_order(int first) const { checked_.require_order(static_cast<std::size_t>(first), at_); }

  void visit(const Operation& operation) {
    switch (operation.kind) {
      case OpKind::gather_start:
        start(operation);
        return;
      case OpKind::gather_wait:
        wait(operation);
        return;
      case OpKind::release:
        release(operation);
        return;
      case OpKind::update:
        update(operation);
        return;
      default:
        break;
    }
    if (reads_weights(program_, operation))
      for (const int u : program_.blocks[static_cast<std::size_t>(operation.block)].units) use(u);
  }

  void start(const Operation& operation) {
    Slot& at = slot(operation.unit);
    if (unit(operation.unit).resident) fail("the unit is resident: there is nothing to gather");
    if (at.state != Slot::State::free) fail(format("the unit is already gathered by {}", text(at.start)));
    if (at.release >= 0) require_order(at.release);
    if (operation.bytes != unit(operation.unit).gathered_bytes) {
      fail(format("it gathers {} bytes, but the shards have {}", operation.bytes,
                  unit(operation.unit).gathered_bytes));
    }
    at.state = Slot::State::filling;
    at.start = static_cast<int>(at_);
  }

  void wait(const Operation& operation) {
    Slot& at = slot(operation.unit);
    if (at.state != Slot::State::filling) fail("no gather_start of the unit is under way");
    require_order(at.start);
    at.state = Slot::State::ready;
    at.wait = static_cast<int>(at_);
    at.uses.clear();
  }

  void use(int u) {
    if (unit(u).resident) return;
    Slot& at = slot(u);
    if (at.state == Slot::State::filling)
      fail(format("unit {} is not gathered yet: no gather_wait after {}", unit(u).name, text(at.start)));
    if (at.state == Slot::State::free) {
      fail(at.release < 0
               ? format("unit {} is not gathered", unit(u).name)
               : format("unit {} is not gathered: {} gave it back", unit(u).name, text(at.release)));
    }
    require_order(at.wait);
    at.uses.push_back(at_);
  }

  void release(const Operation& operation) {
    Slot& at = slot(operation.unit);
    if (at.state != Slot::State::ready) fail("the unit is not gathered");
    require_order(at.wait);
    for (const std::size_t use : at.uses) checked_.require_order(use, at_);
    at.state = Slot::State::free;
    at.release = static_cast<int>(at_);
  }

  void update(const Operation& operation) {
    const Slot& at = slot(operation.unit);
    if (at.state != Slot::State::free)
      fail(format("the copy gathered by {} is still in use and would be stale", text(at.start)));
    if (at.release >= 0) require_order(at.release);
  }

  const CheckedProgram& checked_;
  const StepProgram& program_;
  std::vector<Slot> slots_;
  std::size_t at_ = 0;
};

}  // namespace

void check_gathers(const CheckedProgram& checked) {
  Gathers(checked).check();
}

}  // namespace stepforge
