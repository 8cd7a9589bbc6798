// SPDX-License-Identifier: Apache-2.0
// The kinds of collectives, their names and the description of one call.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "stepforge/base/dtype.h"

namespace stepforge {

enum class CollectiveKind : uint8_t { all_gather, reduce_scatter, all_reduce, broadcast, barrier };

/// "all_gather"
std::string_view collective_name(CollectiveKind kind);

/// `unit` of calls that move no unit's bytes.
inline constexpr int kNoUnit = -1;

/// One call; all ranks of the group must make the same.
struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::barrier;
  uint64_t bytes = 0;       ///< of one rank's part of an all-gather, otherwise of the whole
  DType dtype = DType::u8;  ///< of a sum; u8 for calls without a sum
  int root = 0;             ///< of a broadcast: its index in the group
  int unit = kNoUnit;       ///< number of the model's unit whose bytes move

  bool operator==(const CollectiveCall&) const = default;
};

/// "reduce_scatter of 64 bytes fp32", "all_gather of 1024 bytes for unit 3"
std::string collective_text(const CollectiveCall& call);

}  // namespace stepforge
