// SPDX-License-Identifier: Apache-2.0
// Which tokens a run learns as the end of its answers.
#pragma once

#include "stepforge/train/trainer.h"

namespace stepforge {

/// Adds the tokens with which the chat template ends an answer to eos_token_id in the run's generation_config.json, if they
/// are among the labels at the beginning of the training data: `chat` and an export stop at them. Otherwise a model that
/// started with another end of text, as base models do, would go on. Warns if conversations are learned without any token that
/// ends them. To be called when the weights are loaded, on all ranks; only the first one does something.
void record_answer_ends(Trainer& trainer);

}  // namespace stepforge
