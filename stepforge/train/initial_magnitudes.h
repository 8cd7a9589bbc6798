// SPDX-License-Identifier: Apache-2.0
// The magnitudes of DoRA (modelspec/calls/magnitude.h) at the start of a run.
#pragma once

#include "stepforge/kernels/divided.h"
#include "stepforge/modelspec/model_spec.h"
#include "stepforge/storage/unit_store.h"

namespace stepforge {

/// Sets magnitudes that are all 0, as before anything is loaded, to the norms of their rows, as the calls compute them, so that
/// these multiply by exactly 1.
/// `model` is this rank's part, with the weights in `store`; `tensor`: the ranks that have the other columns of its matrices.
/// Gathers one block after the other: a collective of all ranks. Does nothing if there are no magnitudes.
void set_initial_magnitudes(const ModelSpec& model, ModelStore& store, const TensorExchange& tensor);

}  // namespace stepforge
