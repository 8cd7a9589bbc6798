// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"
#include "stepforge/step/contributions.h"
#include "stepforge/step/effects.h"
#include "stepforge/step/happens_before.h"

namespace stepforge {

namespace {

/// One resource while the program is followed.
struct Held {
  State state = State::absent;
  AccessOrder order;
  int buffer = kNoBuffer;  // its memory
};

/// Follows the states of resources through a program. Nothing here depends on the kind of an operation or resource.
class Resources : ListWalk {
 public:
  explicit Resources(const StepProgram& program)
      : ListWalk(program), before_(program), effects_(program), held_(effects_.count()) {
    for (const Instance& instance : effects_.all())
      if (effects_.is_persistent(instance)) held(instance).state = State::present;
  }

  void check() {
    check_effects();
    check_buffers();
  }

 private:
  /// `operation` uses `buffer`, whether it lists it or not.
  struct BufferUse {
    int operation = 0;
    int buffer = 0;
  };

  void check_effects() {
    Contributions contributions(program_, effects_);
    walk([&](const Operation& operation) {
      const std::vector<InstanceEffect>& effects = effects_.of(operation);
      for (const auto& [effect, instance] : effects) {
        const bool existed = (bit(held(instance).state) & resource_table::kExists) != 0;
        access(effect.access, instance);
        use_buffer(operation, effect, instance, existed);
      }
      if (const std::string wrong = contributions.apply(operation, effects); !wrong.empty()) fail(wrong);
    });
    check_end(/*buffers=*/false);
  }

  void check_buffers() {
    auto next = uses_.begin();
    walk([&](const Operation& operation) {
      for (const int buffer : operation.allocates) access_buffer(Access::make, buffer);
      for (const int buffer : operation.reads) access_buffer(Access::use, buffer);
      for (; next != uses_.end() && next->operation == here(); ++next)
        access_buffer(Access::use, next->buffer);
      for (const int buffer : operation.frees) access_buffer(Access::end, buffer);
    });
    check_end(/*buffers=*/true);
  }

  Held& held(const Instance& instance) { return held_[effects_.index(instance)]; }

  void access_buffer(Access access_kind, int buffer) {
    const Instance instance{Resource::buffer, buffer, 0};
    if (access_kind != Access::use && effects_.is_persistent(instance))
      fail(format("{} is persistent: no operation allocates or frees it", effects_.noun(instance)));
    access(access_kind, instance);
  }

  void access(Access kind, const Instance& instance) {
    const AccessInfo& info = access_info(kind);
    Held& resource = held(instance);
    const bool persistent = effects_.is_persistent(instance);
    if (!persistent && (info.from & bit(resource.state)) == 0) fail(wrong_state(info, instance));
    resource.order.add(here(), element(program_.operations, here()).lane,
                       effects_.is_exclusive(kind, instance),
                       [this](int earlier) { require_order(earlier); });
    if (persistent || info.keeps) return;
    const bool ends = info.to == State::absent && resource_info(instance.resource).once;
    resource.state = ends ? State::gone : info.to;
  }

  /// The memory of a resource is live while it is used, even if the operation does not list it.
  void use_buffer(const Operation& operation, const Effect& effect, const Instance& instance, bool existed) {
    const int kind = resource_info(instance.resource).buffer;
    if (kind == kNoBuffer || effect.access == Access::bar || effects_.is_persistent(instance)) return;
    const auto buffer_kind = static_cast<BufferKind>(kind);
    const int value = resource_info(instance.resource).owner == OwnerKind::value ? instance.owner : -1;
    Held& resource = held(instance);
    if (makes(effect.access, existed)) {
      resource.buffer = find_buffer(program_, operation.allocates, buffer_kind, value);
      if (resource.buffer == kNoBuffer && effects_.needs_memory(instance))
        fail(format("it has no buffer for {}", effects_.noun(instance)));
      return;
    }
    if (resource.buffer == kNoBuffer) return;
    if (!selects_units(effect.selector)) {
      const int listed = find_buffer(program_, operation.reads, buffer_kind, value);
      if (listed == kNoBuffer && effect.access == Access::add)
        fail(format("it does not list buffer {}, to which it adds",
                    element(program_.buffers, resource.buffer).name));
      if (listed != kNoBuffer && listed != resource.buffer)
        fail(format("it reads buffer {}, not {}", element(program_.buffers, listed).name,
                    element(program_.buffers, resource.buffer).name));
    }
    uses_.push_back({here(), resource.buffer});
  }

  /// Fails unless `first` is the current operation or has finished when the current one starts.
  void require_order(int first) const {
    if (first == here()) return;
    if (before_(static_cast<std::size_t>(first), static_cast<std::size_t>(here()))) return;
    fail(format("may run before {} has finished: that runs on lane {}, and no dependency orders them",
                text(first), lane_name(element(program_.operations, first).lane)));
  }

  std::string wrong_state(const AccessInfo& info, const Instance& instance) {
    const Held& resource = held(instance);
    const ResourceInfo& row = resource_info(instance.resource);
    std::string noun = effects_.noun(instance);
    const std::string by =
        resource.order.last() == AccessOrder::kNone ? std::string() : " by " + text(resource.order.last());
    const bool wants_absent = (info.from & bit(State::absent)) != 0;
    switch (resource.state) {
      case State::absent:
      case State::gone:
        if (resource.order.last() == AccessOrder::kNone) return format("{} has not been {}", noun, row.done);
        return format("{} was {}{}{}", noun, resource.state == State::gone ? "already " : "", row.undone, by);
      case State::under_way:
        return format("{} is {} being {}{}", noun, wants_absent ? "already" : "still", row.active, by);
      case State::present:
        if (info.access == Access::flush) return format("{} has not been changed", noun);
        return format("{} was already {}{}", noun, row.done, by);
      case State::changed:
        if (info.access == Access::take) return format("{} was changed{}, which would be lost", noun, by);
        return format("{} was already {}{}", noun, row.done, by);
    }
    return noun;
  }

  void check_end(bool buffers) {
    for (const Instance& instance : effects_.all()) {
      if ((instance.resource == Resource::buffer) != buffers || effects_.is_persistent(instance)) continue;
      const Held& resource = held(instance);
      const ResourceInfo& row = resource_info(instance.resource);
      if (resource.order.last() == AccessOrder::kNone && effects_.is_required(instance))
        fail(format("{} is never {}", effects_.noun(instance), row.done));
      if ((row.at_end & bit(resource.state)) == 0)
        fail_at(resource.order.last(), format("{} is never {}", effects_.noun(instance), row.undone));
    }
  }

  HappensBefore before_;
  ProgramEffects effects_;
  std::vector<Held> held_;
  std::vector<BufferUse> uses_;
};

}  // namespace

void check_resources(const StepProgram& program) {
  Resources(program).check();
}

}  // namespace stepforge
