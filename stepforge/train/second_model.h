// SPDX-License-Identifier: Apache-2.0
// A model on disk that reads the data of a run before the run begins: its teacher (distillation.teacher), or the reference of its
// losses of answers (preference.reference).
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "stepforge/plan/known_model.h"
#include "stepforge/tensorfile/tensor_folder.h"
#include "stepforge/train/trainer.h"

namespace stepforge {

/// Such a model, with its weights.
struct SecondModelFiles {
  std::string setting;  ///< for messages: distillation.teacher = "models/large"
  KnownModel known;
  TensorFolder weights;
  std::string taken;  ///< FrozenWeights::taken of a checkpoint
};

/// Changes with names, shapes, types and values: of a checkpoint by the hashes in its manifest, of a folder of Hugging Face by the first
/// values of each tensor.
std::string model_fingerprint(const KnownModel& model);

/// Its weights, verified. Throws what verify_checkpoint() and open_hf_weights() throw.
SecondModelFiles open_second_model(std::string setting, KnownModel known);

/// Throws UsageError if the model cannot read the run's rows: another tokenizer, rows longer than its context, or a reward model.
void require_reads_rows(const Trainer& trainer, const SecondModelFiles& files);

/// Whether rank 0 has the file, the same on all ranks: what the model has said in an earlier start.
bool is_on_rank0(const Trainer& trainer, const std::filesystem::path& file);

/// The model in memory: sharded over all ranks, each of which has rows of its own, one at a time, whatever the parallelism of the run. Its
/// weights are held in the compute type.
class SecondModel {
 public:
  /// A collective of all ranks. `name` distinguishes its groups from others.
  SecondModel(const Trainer& trainer, const SecondModelFiles& files, const std::string& name);
  ~SecondModel();
  SecondModel(const SecondModel&) = delete;
  SecondModel& operator=(const SecondModel&) = delete;

  const Job& job() const;
  /// Of its evaluation program. Each run is a collective of all ranks.
  Executor& executor();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace stepforge
