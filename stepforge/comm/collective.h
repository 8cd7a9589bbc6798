// The collectives by name: what messages, counts and delays speak of.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "stepforge/base/dtype.h"

namespace stepforge {

enum class CollectiveKind : uint8_t { all_gather, reduce_scatter, all_reduce, broadcast, barrier };

/// "all_gather"
std::string_view collective_name(CollectiveKind kind);

/// Of calls that belong to no unit.
inline constexpr int no_unit = -1;

/// What the ranks of a group must agree on in one call.
struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::barrier;
  uint64_t bytes = 0;       ///< of one rank's part of a gather, else of the whole
  DType dtype = DType::u8;  ///< of a sum; u8 for what only moves
  int root = 0;             ///< of a broadcast: its number in the group
  int unit = no_unit;       ///< of the model: the number of the one whose bytes these are

  bool operator==(const CollectiveCall&) const = default;
};

/// "reduce_scatter of 64 bytes fp32", "all_gather of 1024 bytes for unit 3"
std::string collective_text(const CollectiveCall& call);

}  // namespace stepforge
