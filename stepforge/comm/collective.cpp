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
    case CollectiveKind::all_to_all:
      return "all_to_all";
    case CollectiveKind::send:
      return "send";
    case CollectiveKind::receive:
      return "receive";
    case CollectiveKind::send_receive:
      return "send_receive";
  }
  return "unknown";
}

std::string collective_text(const CollectiveCall& call) {
  using enum CollectiveKind;
  std::string text(collective_name(call.kind));
  if (call.kind != barrier && call.kind != all_to_all) text += format(" of {} bytes", call.bytes);
  if (call.kind == broadcast || call.kind == receive) text += format(" from member {}", call.root);
  if (call.kind == send) text += format(" to member {}", call.root);
  if (call.kind == send_receive) text += format(" to member {} and from member {}", call.root, call.from);
  if (call.kind == reduce_scatter || call.kind == all_reduce) text += format(" {}", dtype_name(call.dtype));
  if (call.unit != kNoUnit) text += format(" for unit {}", call.unit);
  return text;
}

}  // namespace stepforge
