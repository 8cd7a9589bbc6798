// SPDX-License-Identifier: Apache-2.0
// The meaning of each key of a Hugging Face config.json, in one table. A key that is not in the table is
// refused, because it could change what the model computes.
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace stepforge {

struct ModelFamily;  // families.h

/// A key sets a field of the model, or only some of its values are supported. A key with neither is ignored.
struct HfField {
  std::string_view key;
  std::string_view field = {};     ///< the field of [model] that it sets: "dim"
  std::string_view accepted = {};  ///< JSON array of accepted values; of a list, of its elements
  /// Names of built-in families, separated by spaces: the row applies to these only, and later rows without names
  /// apply to the others. If a field has such rows, only these families have it.
  std::string_view families = {};
  /// null means that the model does not have it: the default of the field, which is 0 or empty.
  bool nullable = false;
  bool zero = false;  ///< whether an integer may be 0
};

/// The top-level keys of all built-in families.
std::span<const HfField> hf_fields();

/// The top-level keys in files of a family, one row each: those of a plug-in, then those of the table that set a field, in
/// the order in which they are written, then the others. A row of a plug-in replaces those of its key and of its field.
std::vector<HfField> hf_fields(const ModelFamily& family);

/// nullptr if the key has no row.
const HfField* find_hf_field(std::span<const HfField> rows, std::string_view key);

/// Whether models of the family have this field of [model].
bool has_setting(const ModelFamily& family, std::string_view field);

/// The keys of the object "rope_parameters" or "rope_scaling".
std::span<const HfField> hf_rope_fields();

}  // namespace stepforge
