// SPDX-License-Identifier: Apache-2.0
// Which contributions each gradient contains.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "stepforge/step/effects.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// Follows the contributions of blocks and micro-batches through gradients, stashes and reductions. The contents
/// of a resource that an operation ends or lends go into the resource that it makes or changes.
class Contributions {
 public:
  Contributions(const StepProgram& program, const ProgramEffects& effects);

  /// Applies the next operation of the program. Returns the error, or "".
  std::string apply(const Operation& operation, const std::vector<InstanceEffect>& effects);

 private:
  /// The block and micro-batch that contributed to a gradient.
  using Contribution = std::pair<int, int>;
  /// Sorted.
  using Contents = std::vector<Contribution>;

  Contents& contents(const Instance& instance) { return contents_[effects_.index(instance)]; }
  std::string flow(const Operation& operation, const std::vector<InstanceEffect>& effects);
  void contribute(const Operation& operation);
  /// Each block that uses the unit must have contributed exactly once for each micro-batch.
  std::string incomplete(int unit);
  /// The gradient must consist of what these blocks have contributed for one micro-batch.
  std::string not_alone(int unit, int micro_batch);
  std::string text(const Contribution& contribution) const;

  const StepProgram& program_;
  const ProgramEffects& effects_;
  std::map<std::size_t, Contents> contents_;  // by the index of the resource
  std::vector<std::vector<int>> users_;       // of each unit: the blocks that use it
};

}  // namespace stepforge
