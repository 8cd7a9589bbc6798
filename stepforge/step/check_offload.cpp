// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <map>

#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"

namespace stepforge {

namespace {

/// One part of the state of an offloaded unit.
struct Part {
  int on_device = kNever;  ///< the operation that wrote the copy on the device, if there is one
  int written = kNever;    ///< the operation that wrote the copy on the host in this step
  bool changed = false;    ///< the copy on the device is newer than the one on the host
};

std::string_view name_of(BufferKind kind) {
  return kind == BufferKind::optimizer ? "moments" : buffer_kind_name(kind);
}

class Offload : RuleWalk {
 public:
  explicit Offload(const CheckedProgram& checked) : RuleWalk(checked), units_(program_.units.size()) {}

  void check() {
    walk([this](const Operation& operation) { visit(operation); });
    for (int u = 0; u < std::ssize(units_); ++u) {
      for (const BufferKind kind : kAllKinds)
        if (part(u, kind).changed)
          fail(format("unit {}: its {} are never written back to the host", unit(u).name, name_of(kind)));
    }
  }

 private:
  static constexpr std::array kAllKinds = {BufferKind::weights, BufferKind::gradients, BufferKind::optimizer};

  Part& part(int unit, BufferKind kind) {
    std::array<Part, kAllKinds.size()>& parts = element(units_, unit);
    return parts.at(kind == BufferKind::weights ? 0 : kind == BufferKind::gradients ? 1 : 2);
  }

  void visit(const Operation& operation) {
    const int u = operation.unit;
    const bool offloaded = u >= 0 && unit(u).offloaded;
    switch (operation.kind) {
      case OpKind::reload_start:
      case OpKind::offload_start:
        return copy(operation);
      case OpKind::reload_wait:
      case OpKind::offload_wait:
        return wait(operation);
      case OpKind::gradient_norm:
        return norm();
      case OpKind::tie_reduce:
        if (offloaded) require_on_host(u);
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
    if (!unit(operation.unit).offloaded) fail("the unit is not offloaded");
    const std::vector<BufferKind> kinds = kinds_of(operation.parts);
    if (kinds.empty()) fail("it copies nothing");
    const bool reloads = operation.kind == OpKind::reload_start;
    int64_t bytes = 0;
    for (const BufferKind kind : kinds) {
      const int buffer = find_buffer(program_, reloads ? operation.allocates : operation.reads, kind);
      if (buffer < 0) fail(format("it has no buffer for the {} on the device", name_of(kind)));
      bytes += element(program_.buffers, buffer).bytes;
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
                  part.written == kNever ? "they were never reloaded"
                                         : text(part.written) + " moved them to the host"));
    }
    require_order(part.on_device);
  }

  void require_buffer(const Operation& operation, BufferKind kind) const {
    if (find_buffer(program_, operation.reads, kind) < 0)
      fail(format("it does not read the {} on the device", name_of(kind)));
  }

  /// The operation reads the copy on the device, for the last time.
  void take(const Operation& operation, BufferKind kind) {
    Part& used = part(operation.unit, kind);
    require_on_device(used, kind);
    require_buffer(operation, kind);
    used.on_device = kNever;
  }

  /// The operation changes the copy on the device.
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
    if (found == latest_copy_.end() || element(program_.operations, found->second).kind != awaited)
      fail(format("no {} of the unit is under way", op_name(awaited)));
    require_order(found->second);
  }

  /// The norm is computed on the host, and copies of a tied unit are summed there.
  void norm() {
    for (int u = 0; u < std::ssize(units_); ++u)
      if (unit(u).offloaded && unit(u).trainable) require_on_host(u);
  }

  void require_on_host(int u) {
    const Part& gradients = part(u, BufferKind::gradients);
    if (gradients.written == kNever || gradients.changed)
      fail(format("unit {}: the host does not have its gradients", unit(u).name));
    require_order(gradients.written);
  }

  std::vector<std::array<Part, kAllKinds.size()>> units_;
  std::map<int, int> latest_copy_;  // by unit
};

}  // namespace

void check_offload(const CheckedProgram& checked) {
  Offload(checked).check();
}

}  // namespace stepforge
