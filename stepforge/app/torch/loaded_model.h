// SPDX-License-Identifier: Apache-2.0
// Loads a trained model from a checkpoint, the newest checkpoint of a run, or a Hugging Face folder.
#pragma once

#include <filesystem>
#include <memory>

#include "stepforge/app/torch_library.h"
#include "stepforge/base/json.h"
#include "stepforge/modelspec/model_spec.h"
#include "stepforge/nn/block.h"
#include "stepforge/plan/known_model.h"
#include "stepforge/storage/unit_store.h"
#include "stepforge/tensorfile/tensor_folder.h"

namespace stepforge {

/// A model on disk: its weights and its tokenizer are not read yet.
struct ModelFiles {
  KnownModel known;
  ModelSpec spec;
  TensorFolder weights;
  Json generation;  ///< read_generation_config() of the folder or run; null if there is none

  const Config& config() const { return known.config; }
};

/// `path`: step-N, a run folder or a Hugging Face folder. Throws UsageError if it is none of them.
ModelFiles open_model(const std::filesystem::path& path, const CommandContext& context);

struct LoadedModel : ModelFiles {
  std::unique_ptr<ModelStore> store;

  /// Forward code for up to `context_length` positions.
  Model forward(int64_t context_length) const;
};

/// Like open_model, with the weights in memory and gathered in `compute`, and with memory for their gradients if asked.
LoadedModel load_model(const std::filesystem::path& path, DType compute, const CommandContext& context,
                       bool with_gradient = false);

}  // namespace stepforge
