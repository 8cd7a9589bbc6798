// A Hugging Face model folder's config.json and generation_config.json, to and from our model section.
#pragma once

#include <string>

#include "stepforge/base/dtype.h"
#include "stepforge/base/json.h"
#include "stepforge/config/config.h"

namespace stepforge {

/// The config.json that transformers needs to load an export. `eos` and `bos` are token ids, -1 = none.
Json hf_config(const ModelConfig& model, DType dtype, int64_t bos, int64_t eos);
Json hf_generation_config(int64_t bos, int64_t eos);

/// Reads config.json. Throws FormatError naming `source` and the key: an unknown model_type, a missing or
/// mistyped value, or a setting that changes the mathematics and that we do not have (biases, another
/// activation, sliding windows).
ModelConfig model_from_hf_config(const Json& config, const std::string& source);

}  // namespace stepforge
