// SPDX-License-Identifier: Apache-2.0
// Which layers have a window, in config.json. Not public.
#pragma once

#include "stepforge/base/json_reader.h"
#include "stepforge/catalog/families.h"
#include "stepforge/config/config.h"

namespace stepforge {

/// Sets layer_types, after sliding_window has been read. `reader`: config.json with the defaults of the family.
/// Throws FormatError for layers that transformers refuses or that are not supported.
void read_window(const JsonReader& reader, const ModelFamily& family, ModelConfig& model);

/// Adds the keys that say which layers have a window.
void write_window(const ModelConfig& model, const ModelFamily& family, Json& config);

}  // namespace stepforge
