// Where the parameters of a unit lie in its flat buffers: masters, gradients, optimizer slots, gathered
// copies.
#pragma once

#include <cstdint>
#include <vector>

#include "spec/parameter.h"

namespace stepforge {

/// Every tensor starts at a multiple of this many elements: of 256 bytes even in a one-byte dtype.
inline constexpr int64_t kTensorAlignment = 256;

/// A unit ends at a multiple of this many elements: the chunks over which ordered norms are summed and at
/// which shards are cut.
inline constexpr int64_t kUnitBorder = 1024;

/// Offsets are in elements, so that the same layout serves every dtype. What lies between tensors is padding:
/// zero.
struct FlatLayout {
  std::vector<int64_t> offsets;  ///< of each parameter, in the order of UnitSpec::parameters
  int64_t size = 0;              ///< of the whole unit, padding included; a multiple of kUnitBorder
};

FlatLayout flat_layout(const UnitSpec& unit);

/// Elements of a unit of `size` elements on each of `shards` ranks: equal parts, cut at multiples of
/// kUnitBorder. The last parts may lie beyond the unit, in zeros.
int64_t shard_elements(int64_t size, int shards);

}  // namespace stepforge
