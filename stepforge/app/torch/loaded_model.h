// SPDX-License-Identifier: Apache-2.0
// Loads a trained model from a checkpoint, the newest checkpoint of a run, or a Hugging Face folder.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "stepforge/app/torch_library.h"
#include "stepforge/base/json.h"
#include "stepforge/checkpoint/initial_adapter.h"
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
  std::optional<InitialAdapter> initial = {};  ///< what the run's adapter took from the weights

  /// Null if it took nothing.
  const InitialAdapter* taken() const { return initial ? &*initial : nullptr; }

  const Config& config() const { return known.config; }
};

/// `path`: step-N, a run folder or a Hugging Face folder. Throws UsageError if it is none of them.
ModelFiles open_model(const std::filesystem::path& path, const CommandContext& context);

struct LoadedModel : ModelFiles {
  std::unique_ptr<ModelStore> store;

  /// Forward code for up to `context_length` positions.
  Model forward(int64_t context_length) const;
};

/// How the weights of a model are held.
struct LoadOptions {
  DType compute = DType::f32;              ///< of gathered weights
  std::string device = "cpu";              ///< as training.device; this thread then uses its kernels
  bool with_gradient = false;              ///< with memory for gradients
  std::vector<std::string> adapters = {};  ///< read_adapters(), merged into the weights
  bool writes_text = false;                ///< refuses a reward model
};

/// Like open_model, with the weights in memory. Throws UsageError too if there is no such device, or the model cannot do
/// what is asked.
LoadedModel load_model(const std::filesystem::path& path, const LoadOptions& options,
                       const CommandContext& context);

}  // namespace stepforge
