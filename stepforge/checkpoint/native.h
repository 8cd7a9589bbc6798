// SPDX-License-Identifier: Apache-2.0
// Stepforge's own checkpoints: a folder `step-N` with
//   *.safetensors   fp32 masters under their Hugging Face names, one tensor per sub-tensor, and
//                   "optim.state.<name>.exp_avg" and ".exp_avg_sq" unless only weights were saved.
//                   A single rank writes model.safetensors and optimizer.safetensors. Each of several ranks
//                   writes what it holds, as shard-0000r-model-0000k-of-0000n.safetensors, and the same with
//                   "optimizer"; a part that starts or ends inside a row is up to three slices, each in its own
//                   file.
//   state.json      counters, schedule, loader: the state that the trainer needs to continue
//   manifest.json   length and hash of each of these files
// A folder with such a name is complete: it is written under a temporary name and renamed. Only the slices
// depend on ranks: any layout reads the checkpoints of any other, and so does stock PyTorch's
// HuggingFaceStorageReader.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "stepforge/base/file_record.h"
#include "stepforge/base/json.h"
#include "stepforge/base/log.h"
#include "stepforge/checkpoint/checkpoint_ranks.h"
#include "stepforge/checkpoint/frozen_weights.h"
#include "stepforge/checkpoint/initial_adapter.h"
#include "stepforge/checkpoint/staged_checkpoint.h"
#include "stepforge/checkpoint/tensor_comparison.h"
#include "stepforge/modelspec/model_spec.h"
#include "stepforge/optim/optimizer.h"
#include "stepforge/storage/unit_store.h"
#include "stepforge/tensorfile/tensor_folder.h"

namespace stepforge {

/// Whether a file of a checkpoint holds optimizer state; an optimizer without any has none.
bool is_optimizer_file(const FileRecord& file);

/// Value of "tensor_names" in the manifest's layout.
inline constexpr std::string_view kTensorNames = "hugging_face";

/// All `ranks` together write `dir`/step-N, each the part that it has staged. Returns the bytes of all tensor
/// files. An older folder of the same step is replaced in one atomic exchange. If a rank fails or is late,
/// throws Error on all, naming the rank and its failure, and leaves `dir` unchanged.
int64_t write_checkpoint(const std::filesystem::path& dir, int64_t step, const StagedCheckpoint& staged,
                         const CheckpointRanks& ranks = {});

/// A checkpoint whose files have been checked against its manifest, and the frozen weights that it leaves out against its
/// state.
struct FoundCheckpoint {
  std::filesystem::path path;
  int64_t step = 0;
  FrozenWeights frozen = {};  ///< what it leaves out
};

/// Checks a step folder of any name; each of several ranks reads a share of its bytes. Throws FormatError on
/// all ranks naming every file that is missing, truncated or changed, a manifest whose layout does not
/// describe its files or whose step is out of range, and a state.json of another step; Error if something
/// cannot be read; UsageError if the frozen weights that it leaves out are not those of the save. They are read from
/// `frozen_from`, or if that is empty from where the checkpoint says.
FoundCheckpoint verify_checkpoint(const std::filesystem::path& step_folder, const CheckpointRanks& ranks = {},
                                  const std::filesystem::path& frozen_from = {});

/// Checks `dir`/step-N. Throws UsageError if it does not exist, Error as verify_checkpoint does.
FoundCheckpoint checkpoint_of_step(const std::filesystem::path& dir, int64_t step,
                                   const CheckpointRanks& ranks = {},
                                   const std::filesystem::path& frozen_from = {});

/// The newest step of `dir` that is complete and undamaged, the same on all ranks; nullopt if there are no
/// checkpoints. Each damaged one that is skipped is an error line in the log that names the damaged file and
/// the checkpoint used instead. Throws UsageError with the damage of each if all are damaged, and otherwise as
/// verify_checkpoint() does: one that cannot be read may be whole.
std::optional<FoundCheckpoint> newest_complete_checkpoint(const std::filesystem::path& dir, Logger& logger,
                                                          const CheckpointRanks& ranks = {},
                                                          const std::filesystem::path& frozen_from = {});

/// Renames the folders of steps after `step` to "step-N.damaged", so that later saves do not replace them.
void set_aside_later_steps(const std::filesystem::path& dir, int64_t step, Logger& logger,
                           const CheckpointRanks& ranks = {});

/// The content of state.json. Throws Error if it cannot be read or is not an object.
Json read_checkpoint_state(const FoundCheckpoint& checkpoint);

/// The tensors of the files of a checkpoint. Throws FormatError if slices overlap or elements are missing.
TensorFolder stored_tensors(const std::filesystem::path& step_folder);
/// The same, with the frozen weights that it leaves out.
TensorFolder checkpoint_tensors(const FoundCheckpoint& checkpoint);

/// Loads what `store` holds: this rank's part of the masters and, unless `optimizer` is null, of its moments
/// and its number of steps; returns the saved state. The layout may differ from that of the save. `model` is
/// the whole model (this rank's parts of its tensors do as well), with which the checkpoint is compared, also
/// in what other ranks hold. Units must not be gathered in another dtype. Throws Error listing every tensor
/// that is missing, unexpected, or of a different shape or type, the same on all ranks, and then changes
/// nothing. With `accepted` differences are stored there and what fits is loaded, as by import_weights(); a checkpoint of
/// another optimizer is refused all the same. `taken`: as in HfImportOptions.
Json load_checkpoint(const FoundCheckpoint& checkpoint, const ModelSpec& model, ModelStore& store,
                     Optimizer* optimizer, TensorDifferences* accepted = nullptr,
                     const InitialAdapter* taken = nullptr);

/// The same after verify_checkpoint(step_folder), without differences.
Json load_checkpoint(const std::filesystem::path& step_folder, const ModelSpec& model, ModelStore& store,
                     Optimizer* optimizer);

}  // namespace stepforge
