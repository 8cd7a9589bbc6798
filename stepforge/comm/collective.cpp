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

std::string collective_text(const CollectiveCall& call) {
  std::string text(collective_name(call.kind));
  if (call.kind != CollectiveKind::barrier) text += format(" of {} bytes", call.bytes);
  if (call.kind == CollectiveKind::broadcast) text += format(" from member {}", call.root);
  if (call.kind == CollectiveKind::reduce_scatter || call.kind == CollectiveKind::all_reduce) {
    text += format(" {}", dtype_name(call.dtype));
  }
  if (call.unit != kNoUnit) text += format(" for unit {}", call.unit);
  return text;
}

}  // namespace stepforge
