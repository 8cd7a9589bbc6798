// SPDX-License-Identifier: Apache-2.0
// The teacher of a run (distillation.teacher), which predicts the training data before the run begins.
#pragma once

#include <string>

#include "stepforge/train/second_model.h"
#include "stepforge/train/trainer.h"

namespace stepforge {

/// Throws what require_reads_rows() throws, and UsageError if the teacher has fewer tokens than distillation.top_k.
void require_teacher_fits(const Trainer& trainer, const SecondModelFiles& teacher);

/// A teacher in memory.
class TeacherModel {
 public:
  /// A collective of all ranks.
  TeacherModel(const Trainer& trainer, const SecondModelFiles& teacher);

  /// Of each label of `batch`, in order, distillation.top_k ids and log-probabilities as they are in "targets" of the file
  /// (teacher_targets.h). A collective of all ranks.
  std::string predict(const Batch& batch);

 private:
  SecondModel model_;
  StepInputs inputs_;
  double temperature_;
};

}  // namespace stepforge
