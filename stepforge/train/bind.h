// SPDX-License-Identifier: Apache-2.0
// The check that a step program and the storage that it runs on were built from the same rank layout.
#pragma once

#include "stepforge/nn/block.h"
#include "stepforge/step/program.h"
#include "stepforge/storage/unit_store.h"

namespace stepforge {

/// Throws Error naming the first unit, block or group in which the program differs from the store or the
/// model, with both values.
void check_binding(const StepProgram& program, const Model& model, const ModelStore& store);

}  // namespace stepforge
