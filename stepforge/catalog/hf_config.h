// SPDX-License-Identifier: Apache-2.0
// Conversion between config.json and generation_config.json of Hugging Face and our [model] section.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "stepforge/base/dtype.h"
#include "stepforge/base/json.h"
#include "stepforge/config/config.h"

namespace stepforge {

/// The config.json of an export, with the token ids of `generation`.
Json hf_config(const ModelConfig& model, DType dtype, const Json& generation);

/// Reads config.json like transformers. Throws FormatError, which names `source` and the key, for
///
/// - an unknown model_type,
/// - a missing value, or one of the wrong type or outside the range of our field,
/// - a setting that changes the computation and is not supported,
/// - an unknown key (see hf_fields.h).
///
/// `plugins` have further families; the result keeps them.
ModelConfig model_from_hf_config(const Json& config, const std::string& source,
                                 const std::shared_ptr<const Registry>& plugins = nullptr);

/// The generation settings of a model folder: `generation` (its generation_config.json, or {}), with missing
/// token ids taken from `config` (its config.json). Throws FormatError if an id is not a number or a list of
/// numbers.
Json hf_generation(const Json& generation, const Json& config, const std::string& source);

/// `generation`, which may be null, with `ends` joined to its eos_token_id: a number if it is one, otherwise a list with
/// the new ones last.
Json with_end_tokens(Json generation, std::span<const int32_t> ends);

/// The generation_config.json of an export: `generation`, which may be null, with missing token ids taken
/// from `bos` and `eos` of the tokenizer; null where the tokenizer has none either.
Json hf_generation_config(Json generation, std::optional<int32_t> bos, std::optional<int32_t> eos);

/// The model section for folder/config.json. Throws Error if it cannot be read, FormatError naming the key
/// that is wrong or not supported.
ModelConfig hf_model_config(const std::filesystem::path& folder,
                            const std::shared_ptr<const Registry>& plugins = nullptr);

/// The generation settings of `folder`: its generation_config.json, and the token ids of its config.json if
/// the former has none; null if it has neither file. A run folder keeps those of the model that the run
/// started from.
Json read_generation_config(const std::filesystem::path& folder);
inline constexpr const char* kGenerationFileName = "generation_config.json";

}  // namespace stepforge
