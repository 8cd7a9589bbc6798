// SPDX-License-Identifier: Apache-2.0
// Passes of plug-ins over step programs.
#pragma once

#include <string_view>

#include "stepforge/base/registry.h"
#include "stepforge/config/config.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// Changes the program of each rank, in training and validation: the order of its operations, their needs beyond those that
/// follow from their effects (`needs`, earlier operations), or the operations (insert_operations of step/passes.h). All
/// registered passes run, in the order of registration; each may read a section of its own. Buffers and the other needs are
/// derived afterwards, and the result is proved like any program: one that is wrong is refused.
struct PassKind {
  static constexpr std::string_view kKind = "pass";
  std::string_view name;
  void (*run)(StepProgram& program, const Config& config) = nullptr;
};

}  // namespace stepforge
