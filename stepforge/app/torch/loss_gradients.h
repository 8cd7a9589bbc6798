// SPDX-License-Identifier: Apache-2.0
// The gradients of the loss of given tokens, as a file.
#pragma once

#include <filesystem>

#include "stepforge/app/torch/loaded_model.h"
#include "stepforge/data/batch.h"

namespace stepforge {

/// Writes a safetensors file with the gradient of each tensor of the model, fp32, under its Hugging Face name. The loss is
/// the mean cross-entropy over all labels of `batch`, without dropout and without the losses of routers. The program of a
/// training step computes the rows one after the other and sums their gradients. A tied tensor appears once.
/// `config` is that of the evaluation of one row; `model` was loaded with gradients and keeps its weights.
void write_gradients(const std::filesystem::path& output, Config config, LoadedModel& model,
                     const Batch& batch);

}  // namespace stepforge
