// Stepforge's own checkpoints: a folder `step-N` with
//   model.safetensors      fp32 masters under their Hugging Face names, one tensor per segment
//   optimizer.safetensors  "optim.state.<name>.exp_avg" and ".exp_avg_sq"; absent if only weights were saved
//   state.json             counters, schedule, loader: whatever the trainer needs to go on
//   manifest.json          length and hash of each of them
// A folder of that name is complete: it is written beside and renamed. Nothing in it depends on ranks, and
// stock PyTorch's HuggingFaceStorageReader loads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/log.h"
#include "optim/adamw.h"
#include "parallel/unit_store.h"
#include "spec/model_spec.h"
#include "tensorfile/safetensors.h"

namespace stepforge {

inline constexpr std::string_view kModelFileName = "model.safetensors";
inline constexpr std::string_view kOptimizerFileName = "optimizer.safetensors";
inline constexpr std::string_view kStateFileName = "state.json";

/// A copy of everything that one checkpoint holds, in host memory. Later changes of the weights do not reach
/// it.
class StagedCheckpoint {
 public:
  /// Of all tensors.
  int64_t bytes() const;

 private:
  struct StagedTensor {
    TensorSpec spec;
    size_t begin = 0;  // byte offset in memory_
  };

  friend StagedCheckpoint stage_checkpoint(const ModelSpec&, const ModelStore&, const AdamW*, Json,
                                           StagedCheckpoint);
  friend void write_checkpoint(const std::filesystem::path&, int64_t, const StagedCheckpoint&);
  void reserve(size_t bytes);
  void write_tensors(const std::filesystem::path& path, const std::vector<StagedTensor>& tensors) const;

  std::unique_ptr<std::byte[]> memory_;
  size_t capacity_ = 0;
  std::vector<StagedTensor> model_;
  std::vector<StagedTensor> optimizer_;
  Json state_;
};

/// Copies masters, moments (unless `optimizer` is null) and `state`, a JSON object, to which
/// "optimizer_steps" is added. Over several ranks all call it together; data rank 0 gets the copy, whole, and
/// writes it, the others' is empty. Pass the previous copy as `reused`: its memory serves again, so that
/// nothing large is allocated after the first save. Throws Error if `state` is no object.
StagedCheckpoint stage_checkpoint(const ModelSpec& model, const ModelStore& store, const AdamW* optimizer,
                                  Json state, StagedCheckpoint reused = {});

/// Writes `dir`/step-N. An older folder of the same step is replaced in one atomic exchange. On failure
/// throws Error and leaves everything in `dir` as it was.
void write_checkpoint(const std::filesystem::path& dir, int64_t step, const StagedCheckpoint& staged);

/// A checkpoint of which every byte has been checked against its manifest.
struct FoundCheckpoint {
  std::filesystem::path path;
  int64_t step = 0;
};

/// Checks a step folder, under whatever name. Throws Error naming every file that is missing, cut short or
/// changed.
FoundCheckpoint verify_checkpoint(const std::filesystem::path& step_folder);

/// `dir`/step-N. Throws UsageError if there is none, Error as verify_checkpoint.
FoundCheckpoint checkpoint_of_step(const std::filesystem::path& dir, int64_t step);

/// The newest step of `dir` that is complete and undamaged, nullopt if there is none. Each damaged one that
/// is passed over is an error line in the log that names the damaged file and the checkpoint used instead.
std::optional<FoundCheckpoint> newest_complete_checkpoint(const std::filesystem::path& dir, Logger& logger);

/// Its state.json, without loading a tensor. Throws Error.
Json read_checkpoint_state(const FoundCheckpoint& checkpoint);

/// Loads masters and, unless `optimizer` is null, its moments and number of steps; returns the saved state.
/// The units must not be gathered in another dtype meanwhile. Throws Error listing every tensor that is
/// missing, unexpected, or of another shape or type, and changes nothing then.
Json load_checkpoint(const FoundCheckpoint& checkpoint, const ModelSpec& model, ModelStore& store,
                     AdamW* optimizer);

/// The same after verify_checkpoint(step_folder).
Json load_checkpoint(const std::filesystem::path& step_folder, const ModelSpec& model, ModelStore& store,
                     AdamW* optimizer);

}  // namespace stepforge
