// SPDX-License-Identifier: Apache-2.0
// A trained model on disk, without its tensors: what it is, and the configuration that starts from it.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/config/config.h"
#include "stepforge/text/tokenizer.h"

namespace stepforge {

enum class ModelKind { checkpoint, run, hf_folder };

/// Which kind of model `path` is. Throws UsageError if it is none of them, as refuse_as_model().
ModelKind model_kind(const std::filesystem::path& path);

/// Throws UsageError that says what `path` is, as far as known (a name of the Hub, a folder of its cache, an adapter,
/// weights that we do not read), with the remedy.
[[noreturn]] void refuse_as_model(const std::filesystem::path& path);

/// A checkpoint or a Hugging Face folder.
struct KnownModel {
  /// The configuration of the run, with its present folder as run_dir. For a Hugging Face folder only the model and the
  /// type of the tokenizer are set.
  Config config;
  std::filesystem::path weights;  ///< the checkpoint (step-N), or the Hugging Face folder
  std::filesystem::path folder;   ///< with the generation settings: the run's, or the Hugging Face folder
  std::filesystem::path tokenizer_folder;  ///< with the tokenizer and the chat template, if there are any
  /// The fingerprint of the tokenizer that the checkpoint was trained with; "" if it does not say.
  std::string tokenizer_fingerprint;

  /// Null if there is none. Throws UsageError if it is not the one that the checkpoint was trained with.
  std::unique_ptr<Tokenizer> load_tokenizer() const;
  /// Throws UsageError if there is none.
  std::unique_ptr<Tokenizer> require_tokenizer() const;
};

/// Throws Error if the files that describe the model cannot be read, FormatError if they are malformed. Of the
/// weights only the names are read. What the run's plug-ins added to its configuration is ignored unless it is in
/// `plugins`, which also has the families that are not built in.
KnownModel known_checkpoint(const std::filesystem::path& step_folder,
                            std::shared_ptr<const Registry> plugins = nullptr);
KnownModel known_hf_folder(const std::filesystem::path& folder,
                           const std::shared_ptr<const Registry>& plugins = nullptr);

/// The same of either, or of the newest checkpoint of a run. Throws UsageError if `path` is no model, or a run without a checkpoint.
KnownModel known_model(const std::filesystem::path& path,
                       const std::shared_ptr<const Registry>& plugins = nullptr);

/// The checkpoint of a run with the lowest validation loss, if it is kept (checkpoint.keep_best), else its newest one. Throws
/// UsageError if there is none.
std::filesystem::path best_checkpoint(const std::filesystem::path& run);

/// Why a command takes this step of a run, for its log: "step 30, the newest of 10, 20, 30", and, if the run was continued from
/// an earlier step since (checkpoint.load_step), which step its last start has reached.
std::string why_step(const std::filesystem::path& run, int64_t step);

/// Where the run in `folder` keeps its checkpoints.
std::filesystem::path checkpoint_folder_of_run(const std::filesystem::path& folder);

/// The settings of a run that starts from the model at `path`, as on the command line: architecture,
/// tokenizer, initial weights, and the defaults of a fine-tune. For a run, its newest checkpoint is used. This
/// is what load_config() needs for `model.from`; for the adapter_config.json of
/// `adapter.from`: those of [adapter]. Throws UsageError if `path` is not a model, a run without
/// a checkpoint, or of a family that neither the program nor `plugins` have.
std::vector<std::string> settings_from_model(const std::string& path,
                                             const std::shared_ptr<const Registry>& plugins = nullptr);

/// Sets the defaults of a fine-tune, which `import` writes into the config.toml of its run.
void use_fine_tune_defaults(Config& config);

/// One line with the sizes of the model that `model.from` named: "qwen3, 28 layers, dim 1024, ...".
std::string model_summary(const ModelConfig& model);

/// Whether a setting, "optimizer.lr = 2e-05", is such a default and not taken from the model.
bool is_fine_tune_default(std::string_view setting);

}  // namespace stepforge
