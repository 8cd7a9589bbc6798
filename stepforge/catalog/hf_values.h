// SPDX-License-Identifier: Apache-2.0
// Fields of [model] and values of config.json, by the tables of hf_fields.h. Not public.
#pragma once

#include <span>
#include <string_view>

#include "stepforge/base/json_reader.h"
#include "stepforge/catalog/hf_fields.h"
#include "stepforge/config/config.h"

namespace stepforge {

/// Sets the field `name` of [model], a switch, number or list of numbers. Refuses values outside the range in its schema,
/// and integers below `least`.
void set_field(const JsonReader& value, std::string_view name, Config& config, int64_t least = 1);

/// Copies the field `name` of [model].
void copy_field(Config& from, Config& to, std::string_view name);

/// The value of a number or switch in config.json; null for a nullable one that is 0.
Json field_json(Config& config, const HfField& field);

/// Sets the fields that `rows` give for the keys of the object, except lists that do not hold fractions. Throws FormatError
/// for a key that is not in `rows`, or a value that is not supported.
void read_fields(const JsonReader& object, std::span<const HfField> rows, Config& config);

}  // namespace stepforge
