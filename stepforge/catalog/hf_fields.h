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
  /// Names of families (families.h), separated by spaces: the row is theirs, and later ones without names are those of
  /// the others. If a field has such rows, only these families have it.
  std::string_view families = {};
  /// null means that the model has no such thing: the default of the field, which is 0 or empty.
  bool nullable = false;
  bool zero = false;  ///< of an integer: whether 0 is a value

  bool of_family(std::string_view family) const;
};

/// The top-level keys. Those that set a field come first, in the order in which they are written.
std::span<const HfField> hf_fields();

/// The row of `table` for a key in files of the family; nullptr if there is none.
const HfField* find_hf_field(std::span<const HfField> table, std::string_view key, std::string_view family);

/// Whether models of the family have this field of [model].
bool has_setting(std::string_view family, std::string_view field);

/// The keys of the object "rope_parameters" or "rope_scaling".
std::span<const HfField> hf_rope_fields();

}  // namespace stepforge
