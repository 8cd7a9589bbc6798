// SPDX-License-Identifier: Apache-2.0
// Translations shared by the trainers that are built on Hugging Face's TrainingArguments.
#pragma once

#include <span>
#include <string_view>

#include "stepforge/config/foreign_conversion.h"

namespace stepforge {

std::span<const ForeignKey> training_argument_keys();

/// Length, warm-up, batch and what finish_trainer_arguments translates; `prefix` is their section: "training." or "".
void finish_hugging_face(ForeignConversion& conversion, std::string_view prefix);

/// Final rate, seed, logs, number of checkpoints and timeout.
void finish_trainer_arguments(ForeignConversion& conversion, std::string_view prefix);

/// LLaMA-Factory's `packing` and `neat_packing`, and its way of cutting samples that are too long.
void convert_llama_factory_packing(ForeignConversion& conversion, std::string_view prefix,
                                   bool is_pretraining);

}  // namespace stepforge
