// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"

namespace stepforge {

namespace {

/// The gathered copy of one unit. The ints are indices of operations.
struct GatheredCopy {
  enum class State : uint8_t { released, gathering, ready };
  State state = State::released;
  int start = kNever;
  int wait = kNever;
  int release = kNever;   // the last one
  std::vector<int> uses;  // since the wait
};

/// Follows the gathered copies of all units through the program.
class GatherCheck : RuleWalk {
 public:
  explicit GatherCheck(const CheckedProgram& checked) : RuleWalk(checked), copies_(program_.units.size()) {}

  void check() {
    walk([this](const Operation& operation) { visit(operation); });
    for (std::size_t u = 0; u < copies_.size(); ++u)
      if (copies_[u].state != GatheredCopy::State::released)
        fail_at(copies_[u].start, format("unit {} is never released", program_.units[u].name));
  }

 private:
  void visit(const Operation& operation) {
    switch (operation.kind) {
      case OpKind::gather_start:
        return start(operation, element(copies_, operation.unit));
      case OpKind::gather_wait:
        return wait(element(copies_, operation.unit));
      case OpKind::release:
        return release(element(copies_, operation.unit));
      case OpKind::update:
        return update(element(copies_, operation.unit));
      default:
        if (!reads_weights(program_, operation)) return;
        for (const int u : block(operation).units) use(u);
    }
  }

  void start(const Operation& operation, GatheredCopy& copy) {
    if (unit(operation.unit).resident) fail("the unit is resident: there is nothing to gather");
    if (copy.state != GatheredCopy::State::released)
      require_never(copy.start, "the unit is already gathered");
    require_order(copy.release);
    if (const int64_t bytes = unit(operation.unit).gathered_bytes; operation.bytes != bytes)
      fail(format("it gathers {} bytes, but the shards have {}", operation.bytes, bytes));
    copy.state = GatheredCopy::State::gathering;
    copy.start = here();
  }

  void wait(GatheredCopy& copy) {
    if (copy.state != GatheredCopy::State::gathering) fail("no gather_start of the unit is under way");
    require_order(copy.start);
    copy.state = GatheredCopy::State::ready;
    copy.wait = here();
    copy.uses.clear();
  }

  void use(int u) {
    const std::string& name = unit(u).name;
    if (unit(u).resident) return;
    GatheredCopy& copy = element(copies_, u);
    if (copy.state == GatheredCopy::State::gathering)
      fail(format("unit {} is not gathered yet: no gather_wait after {}", name, text(copy.start)));
    if (copy.state == GatheredCopy::State::released) {
      fail(copy.release == kNever
               ? format("unit {} is not gathered", name)
               : format("unit {} is not gathered: {} has released it", name, text(copy.release)));
    }
    require_order(copy.wait);
    copy.uses.push_back(here());
  }

  void release(GatheredCopy& copy) {
    if (copy.state != GatheredCopy::State::ready) fail("the unit is not gathered");
    require_order(copy.wait);
    for (const int use : copy.uses) require_order(use);
    copy.state = GatheredCopy::State::released;
    copy.release = here();
  }

  void update(const GatheredCopy& copy) const {
    if (copy.state != GatheredCopy::State::released)
      fail(format("the copy gathered by {} is still in use and would be stale", text(copy.start)));
    require_order(copy.release);
  }

  std::vector<GatheredCopy> copies_;
};

}  // namespace

void check_gathers(const CheckedProgram& checked) {
  GatherCheck(checked).check();
}

}  // namespace stepforge
