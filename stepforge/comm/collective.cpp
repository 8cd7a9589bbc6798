// SPDX-License-Identifier: Apache-2.0
#include "stepforge/comm/collective.h"

#include "stepforge/base/format.h"

namespace stepforge {

std::string_view collective_name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_gather:
      return "all_gather";
    case CollectiveKind::reduce_scatter:
      return "reduce_scatter";
    case CollectiveKind::all_reduce:
      return "all_reduce";
    case CollectiveKind::broadcast:
      return "broadcast";
    case CollectiveKind::barrier:
      return "barrier";
  }
  return "unknown";
}

namespace {

std::string text_without_unit(const CollectiveCall& call) {
  const std::string_view name = collective_name(call.kind);
  switch (call.kind) {
    case CollectiveKind::barrier:
      return std::string(name);
    case CollectiveKind::broadcast:
      return format("{} of {} bytes from member {}", name, call.bytes, call.root);
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::all_reduce:
      return format("{} of {} bytes {}", name, call.bytes, dtype_name(call.dtype));
    case CollectiveKind::all_gather:
      break;
  }
  return format("{} of {} bytes", name, call.bytes);
}

}  // namespace

std::string collective_text(const CollectiveCall& call) {
  return call.unit == no_unit ? text_without_unit(call)
                              : format("{} for unit {}", text_without_unit(call), call.unit);
}

}  // namespace stepforge
