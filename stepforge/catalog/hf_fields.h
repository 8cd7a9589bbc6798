// SPDX-License-Identifier: Apache-2.0
// The meaning of each key of a Hugging Face config.json, in one table. A key that is not in the table is
// refused, because it could change what the model computes.
#pragma once

#include <span>
#include <string_view>

namespace stepforge {

/// A key sets a field of the model, or only some of its values are supported. A key with neither is ignored.
struct HfField {
  std::string_view key;
  std::string_view field = {};     ///< the field of [model] that it sets: "dim"
  std::string_view accepted = {};  ///< JSON array of accepted values; of a list, of its elements
};

/// The top-level keys. Those that set a field come first, in the order in which they are written.
std::span<const HfField> hf_fields();

/// The keys of the object "rope_parameters" or "rope_scaling".
std::span<const HfField> hf_rope_fields();

}  // namespace stepforge
