// Stepforge's own checkpoints: a folder `step-N` with
//   *.safetensors   fp32 masters under their Hugging Face names, one tensor per sub_tensor, and
//                   "optim.state.<name>.exp_avg" and ".exp_avg_sq" unless only weights were saved.
//                   One rank writes model.safetensors and optimizer.safetensors. Of several each writes what
//                   it holds, as shard-0000r-model-0000k-of-0000n.safetensors and likewise "optimizer"; a
//                   part that starts or ends inside a row is up to three slices, each in a file of its own.
//   state.json      counters, schedule, loader: whatever the trainer needs to go on
//   manifest.json   length and hash of each of them
// A folder of that name is complete: it is written beside and renamed. But for how the tensors are cut
// nothing in it depends on ranks: any layout reads any other's, and stock PyTorch's HuggingFaceStorageReader
// does.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "stepforge/base/json.h"
#include "stepforge/base/log.h"
#include "stepforge/checkpoint/checkpoint_ranks.h"
#include "stepforge/checkpoint/staged_checkpoint.h"
#include "stepforge/modelspec/model_spec.h"
#include "stepforge/optim/adamw.h"
#include "stepforge/storage/unit_store.h"
#include "stepforge/tensorfile/tensor_folder.h"

namespace stepforge {

inline constexpr std::string_view kStateFileName = "state.json";

/// Writes `dir`/step-N, all `ranks` together, each what it has staged, and returns the bytes of all tensor
/// files. An older folder of the same step is replaced in one atomic exchange. If a rank fails, throws Error
/// on all, naming the rank and its failure, and leaves everything in `dir` as it was.
int64_t write_checkpoint(const std::filesystem::path& dir, int64_t step, const StagedCheckpoint& staged,
                         const CheckpointRanks& ranks = {});

/// A checkpoint of which every byte has been checked against its manifest, or hashed for it.
struct FoundCheckpoint {
  std::filesystem::path path;
  int64_t step = 0;
};

/// Checks a step folder, under whatever name; of several ranks each reads a share of its bytes. Throws Error
/// naming every file that is missing, cut short or changed, on all ranks.
FoundCheckpoint verify_checkpoint(const std::filesystem::path& step_folder,
                                  const CheckpointRanks& ranks = {});

/// `dir`/step-N. Throws UsageError if there is none, Error as verify_checkpoint.
FoundCheckpoint checkpoint_of_step(const std::filesystem::path& dir, int64_t step,
                                   const CheckpointRanks& ranks = {});

/// The newest step of `dir` that is complete and undamaged, the same on all ranks; nullopt if there is none.
/// Each damaged one that is passed over is an error line in the log that names the damaged file and the
/// checkpoint used instead.
std::optional<FoundCheckpoint> newest_complete_checkpoint(const std::filesystem::path& dir, Logger& logger,
                                                          const CheckpointRanks& ranks = {});

/// Its state.json, without loading a tensor. Throws Error.
Json read_checkpoint_state(const FoundCheckpoint& checkpoint);

/// Its tensors, checked to be complete. Throws FormatError.
TensorFolder checkpoint_tensors(const FoundCheckpoint& checkpoint);

/// Loads what this rank holds of masters and, unless `optimizer` is null, of its moments, and its number of
/// steps; returns the saved state. The layout may be another than that which saved. The units must not be
/// gathered in another dtype meanwhile. Throws Error listing every tensor that is missing, unexpected, or of
/// another shape or type, and changes nothing then.
Json load_checkpoint(const FoundCheckpoint& checkpoint, const ModelSpec& model, ModelStore& store,
                     AdamW* optimizer);

/// The same after verify_checkpoint(step_folder).
Json load_checkpoint(const std::filesystem::path& step_folder, const ModelSpec& model, ModelStore& store,
                     AdamW* optimizer);

}  // namespace stepforge
