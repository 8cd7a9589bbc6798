// SPDX-License-Identifier: Apache-2.0
#include "stepforge/comm/collective.h"

#include <array>
#include <cstddef>

#include "stepforge/base/format.h"

namespace stepforge {

std::string_view collective_name(CollectiveKind kind) {
  constexpr std::array<std::string_view, 5> kNames = {"all_gather", "reduce_scatter", "all_reduce",
                                                      "broadcast", "barrier"};
  const auto index = static_cast<std::size_t>(kind);
  return index < kNames.size() ? kNames[index] : "unknown";
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
