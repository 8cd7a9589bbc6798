// SPDX-License-Identifier: Apache-2.0
// Translates configurations of other trainers: torchtitan, Hugging Face TrainingArguments, TRL and alignment-handbook,
// LLaMA-Factory, Axolotl, MindSpeed-LLM, VeOmni, litgpt, nanoGPT, Megatron-LM and XTuner.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/config/load.h"

namespace stepforge {

/// Every setting of the file is in one of the lists or translated.
struct ConvertedConfig {
  std::string trainer;                ///< "LLaMA-Factory"
  std::string toml;                   ///< a comment, and the translated fields in the order of our schema
  size_t n_settings = 0;              ///< number of settings in the file
  size_t n_lost = 0;                  ///< settings in `lost`, which has other lines too
  size_t n_refused = 0;               ///< settings in `refused`
  size_t n_needless = 0;              ///< settings in `needless`
  size_t n_translated = 0;            ///< settings that are in `toml`
  std::vector<std::string> lost;      ///< "max_samples = 100: not available yet", one line each
  std::vector<std::string> needless;  ///< "compile.enable = true: the kernels are already fused"
  std::vector<std::string> off;       ///< names of features that are off
  std::vector<std::string> refused;   ///< would change what is trained: "lora_rank = 8: ..."
  std::string problem;                ///< why `toml` is not a valid configuration yet, or ""
};

struct ConvertOptions {
  std::string from = {};  ///< name of a ForeignTrainer; "" finds it by the keys of the file
  int64_t ranks = 0;  ///< ranks of the job, for batches that are given per rank; 0 if the file states them
};

/// The extension of `name` gives the format: .json, .yaml or .yml, .sh (arguments of Megatron), .py (assignments of nanoGPT),
/// else TOML. Throws FormatError if `text` is malformed or a program, UsageError if the trainer is not known.
ConvertedConfig convert_config(std::string_view text, const std::string& name,
                               const ConvertOptions& options = {});

/// Loads a converted TOML as training does, but without reading the model of `model.from`. Throws UsageError if it is
/// not valid.
LoadedConfig parse_converted(const std::string& toml);

/// The names of all trainers, for ConvertOptions::from.
std::vector<std::string> foreign_trainer_names();

}  // namespace stepforge
