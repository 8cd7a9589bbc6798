#include <array>
#include <map>

#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"

namespace stepforge {

namespace {

constexpr int kNever = -1;

/// One part of an offloaded unit's state. Indices of operations.
struct Part {
  int on_device = kNever;  ///< that brought or wrote the copy on the device; kNever: there is none
  bool changed = false;    ///< the copy on the device is newer than the host's
  int written = kNever;    ///< that wrote the host's copy in this step
};

std::string_view name_of(BufferKind kind) {
  return kind == BufferKind::optimizer ? "moments" : buffer_kind_name(kind);
}

class Offload {
 public:
  explicit Offload(const CheckedProgram& checked)
      : checked_(checked), program_(checked.program), units_(program_.units.size()) {}

  void check() {
    for (at_ = 0; at_ < program_.operations.size(); ++at_) visit(program_.operations[at_]);
    for (std::size_t u = 0; u < units_.size(); ++u) {
      for (const BufferKind kind : kAllKinds) {
        if (part(static_cast<int>(u), kind).changed) {
          fail(format("unit {}: its {} are never written back to the host", program_.units[u].name,
                      name_of(kind)));
        }
      }
    }
  }

 private:
  static constexpr std::array kAllKinds = {BufferKind::weights, BufferKind::gradients, BufferKind::optimizer};

  [[noreturn]] void fail(const std::string& reason) const { checked_.fail(at_, reason); }
  const ProgramUnit& unit(int index) const { return program_.units[static_cast<std::size_t>(index)]; }
  int here() const { return static_cast<int>(at_); }
  std::string text(int operation) const { return checked_.text(static_cast<std::size_t>(operation)); }
  void require_order(int first) const {
    if (first != kNever) checked_.require_order(static_cast<std::size_t>(first), at_);
  }

  Part& part(int unit, BufferKind kind) {
    std::array<Part, kAllKinds.size()>& parts = units_[static_cast<std::size_t>(unit)];
    return parts.at(kind == BufferKind::weights ? 0 : kind == BufferKind::gradients ? 1 : 2);
  }

  void visit(const Operation& operation) {
    const int u = operation.unit;
    const bool offloaded = u >= 0 && unit(u).offloaded;
    switch (operation.kind) {
      case OpKind::reload_start:
      case OpKind::offload_start:
        copy(operation);
        return;
      case OpKind::reload_wait:
      case OpKind::offload_wait:
        wait(operation);
        return;
      case OpKind::gradient_norm:
        norm();
        return;
      case OpKind::gather_start:
        if (offloaded) take(operation, BufferKind::weights);
        return;
      case OpKind::reduce_start:
        if (offloaded) reduce(operation);
        return;
      case OpKind::all_reduce_start:
        if (offloaded) change(operation, BufferKind::gradients);
        return;
      case OpKind::update:
        if (offloaded) {
          change(operation, BufferKind::weights);
          take(operation, BufferKind::gradients);
          change(operation, BufferKind::optimizer);
        }
        return;
      default:
        return;
    }
  }

  void copy(const Operation& operation) {
    if (!unit(operation.unit).offloaded) fail("the state of the unit lives on the device");
    const std::vector<BufferKind> kinds = kinds_of(operation.parts);
    if (kinds.empty()) fail("it copies nothing");
    const bool reloads = operation.kind == OpKind::reload_start;
    int64_t bytes = 0;
    for (const BufferKind kind : kinds) {
      const int buffer = find_buffer(program_, reloads ? operation.allocates : operation.reads, kind);
      if (buffer < 0) fail(format("it names no buffer for the {} on the device", name_of(kind)));
      bytes += program_.buffers[static_cast<std::size_t>(buffer)].bytes;
      if (reloads)
        reload(part(operation.unit, kind), kind);
      else
        offload(part(operation.unit, kind), kind);
    }
    if (bytes != operation.bytes)
      fail(format("it copies {} bytes, but the state has {}", operation.bytes, bytes));
    latest_copy_[operation.unit] = here();
  }

  void reload(Part& part, BufferKind kind) {
    if (part.on_device != kNever)
      fail(format("the device already has the {} from {}", name_of(kind), text(part.on_device)));
    if (kind == BufferKind::gradients && part.written == kNever)
      fail("the host has no gradients of this step");
    require_order(part.written);
    part.on_device = here();
  }

  void offload(Part& part, BufferKind kind) {
    require_on_device(part, kind);
    if (!part.changed) fail(format("the {} have not changed on the device", name_of(kind)));
    part.on_device = kNever;
    part.changed = false;
    part.written = here();
  }

  void require_on_device(const Part& part, BufferKind kind) const {
    if (part.on_device == kNever) {
      fail(format("the device does not have the {}: {}", name_of(kind),
                  part.written == kNever ? "no reload has brought them" : text(part.written) + " took them"));
    }
    require_order(part.on_device);
  }

  void require_buffer(const Operation& operation, BufferKind kind) const {
    if (find_buffer(program_, operation.reads, kind) < 0)
      fail(format("it does not read the {} on the device", name_of(kind)));
  }

  /// The last use of the device's copy, which stays as it was.
  void take(const Operation& operation, BufferKind kind) {
    Part& used = part(operation.unit, kind);
    require_on_device(used, kind);
    require_buffer(operation, kind);
    used.on_device = kNever;
  }

  void change(const Operation& operation, BufferKind kind) {
    Part& used = part(operation.unit, kind);
    require_on_device(used, kind);
    require_buffer(operation, kind);
    used.on_device = here();
    used.changed = true;
  }

  void reduce(const Operation& operation) {
    if (operation.accumulate) {
      change(operation, BufferKind::gradients);
      return;
    }
    Part& gradients = part(operation.unit, BufferKind::gradients);
    if (gradients.on_device != kNever)
      fail(format("the device already has the gradients from {}", text(gradients.on_device)));
    if (find_buffer(program_, operation.allocates, BufferKind::gradients) < 0)
      fail("it has no buffer for the gradients on the device");
    gradients.on_device = here();
    gradients.changed = true;
  }

  void wait(const Operation& operation) {
    const auto found = latest_copy_.find(operation.unit);
    const OpKind awaited =
        operation.kind == OpKind::reload_wait ? OpKind::reload_start : OpKind::offload_start;
    if (found == latest_copy_.end() ||
        program_.operations[static_cast<std::size_t>(found->second)].kind != awaited) {
      fail(format("no {} of the unit is under way", op_name(awaited)));
    }
    require_order(found->second);
  }

  /// The norm is measured on the host.
  void norm() {
    for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
      if (!unit(u).offloaded || !unit(u).trainable) continue;
      const Part& gradients = part(u, BufferKind::gradients);
      if (gradients.written == kNever || gradients.changed)
        fail(format("unit {}: the host does not have its gradients", unit(u).name));
      require_order(gradients.written);
    }
  }

  const CheckedProgram& checked_;
  const StepProgram& program_;
  std::vector<std::array<Part, kAllKinds.size()>> units_;
  std::map<int, int> latest_copy_;  // of each unit
  std::size_t at_ = 0;
};

}  // namespace

void check_offload(const CheckedProgram& checked) {
  Offload(checked).check();
}

}  // namespace stepforge
