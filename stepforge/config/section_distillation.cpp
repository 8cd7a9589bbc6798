// SPDX-License-Identifier: Apache-2.0
// The section [distillation].
#include "stepforge/config/sections.h"

namespace stepforge {

SchemaOf<DistillationConfig> distillation_section() {
  return SchemaOf<DistillationConfig>()
      .field(
          "teacher", &DistillationConfig::teacher,
          "Model whose predictions are learned beside the labels: a Hugging Face folder, a run or a checkpoint with "
          "the same tokenizer, whose most probable tokens are computed once, before training; empty means none.")
      .field("top_k", &DistillationConfig::top_k,
             "Most probable tokens of the teacher that are kept for each label.", {.min = 1, .max = 65536})
      .field(
          "weight", &DistillationConfig::weight,
          "Share of the divergence from the teacher in the loss (kd_ratio); the rest is the cross-entropy of "
          "the label.",
          {.max = 1, .above = 0})
      .field(
          "temperature", &DistillationConfig::temperature,
          "Number by which the logits of teacher and model are divided for the divergence, which counts with its square.",
          {.min = 0.01, .max = 100});
}

}  // namespace stepforge
