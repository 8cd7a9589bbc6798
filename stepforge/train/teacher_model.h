// SPDX-License-Identifier: Apache-2.0
// The teacher of a run (distillation.teacher), which predicts the training data before the run begins.
#pragma once

#include <memory>
#include <string>

#include "stepforge/plan/known_model.h"
#include "stepforge/tensorfile/tensor_folder.h"
#include "stepforge/train/trainer.h"

namespace stepforge {

/// A teacher on disk.
struct TeacherFiles {
  KnownModel known;
  TensorFolder weights;
  std::string taken;  ///< FrozenWeights::taken of a checkpoint
};

/// Changes with names, shapes, types and values: of a checkpoint by the hashes in its manifest, of a folder of Hugging Face by the first
/// values of each tensor.
std::string teacher_fingerprint(const KnownModel& teacher);

/// Its weights, verified. Throws what verify_checkpoint() and open_hf_weights() throw.
TeacherFiles open_teacher(KnownModel known);

/// Throws UsageError if the teacher cannot judge the run's rows: another tokenizer, rows longer than its context, a reward model, or
/// fewer tokens than distillation.top_k.
void require_teacher_fits(const Trainer& trainer, const TeacherFiles& teacher);

/// A teacher in memory: sharded over all ranks, each of which has rows of its own, whatever the parallelism of the run. Its weights are
/// held in the compute type.
class TeacherModel {
 public:
  /// A collective of all ranks.
  TeacherModel(Trainer& trainer, const TeacherFiles& teacher);
  ~TeacherModel();
  TeacherModel(const TeacherModel&) = delete;
  TeacherModel& operator=(const TeacherModel&) = delete;

  /// Of each label of `batch`, in order, distillation.top_k ids and log-probabilities as they are in "targets" of the file
  /// (teacher_targets.h). A collective of all ranks.
  std::string predict(const Batch& batch);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace stepforge
