// SPDX-License-Identifier: Apache-2.0
// A Hugging Face model folder's config.json and generation_config.json, to and from our model section.
#pragma once

#include <optional>
#include <string>

#include "stepforge/base/dtype.h"
#include "stepforge/base/json.h"
#include "stepforge/config/config.h"

namespace stepforge {

/// The config.json that transformers needs to load an export; token ids are those of `generation`.
Json hf_config(const ModelConfig& model, DType dtype, const Json& generation);

/// Reads config.json, and computes with it as transformers does. Throws FormatError naming `source` and the
/// key: an unknown model_type, a missing or mistyped value, one outside the range of our field, a setting
/// that changes the mathematics and that we do not have, or a key that we do not know (hf_fields.h).
ModelConfig model_from_hf_config(const Json& config, const std::string& source);

/// What a model's folder says about generating text: `generation` (its generation_config.json, or {}), with
/// the token ids of its config.json where that has none. Throws FormatError if an id is not a number or a
/// list.
Json hf_generation(const Json& generation, const Json& config, const std::string& source);

/// The same with the tokenizer's ids where it has none; an id that is unknown becomes null.
Json hf_generation_config(Json generation, std::optional<int32_t> bos, std::optional<int32_t> eos);

}  // namespace stepforge
