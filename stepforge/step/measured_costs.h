// SPDX-License-Identifier: Apache-2.0
// Times of operations measured in one step, as a cost model for other steps.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/step/program.h"

namespace stepforge {

/// Times of operations of the compute lane that involve no other rank, by kind and by block or unit. All
/// layers count as one ("layers.3" as "layers").
class MeasuredCosts {
 public:
  /// `owner`: the name of the block or unit, or "". `amount`: FLOPs, or bytes if it has none, or 0. All operations of
  /// one kind and owner must agree on which.
  void add(std::string_view kind, std::string_view owner, double amount, double seconds);

  /// From the measured step of a trace (`stepforge train --trace`). Throws Error if the file cannot be read,
  /// FormatError if it is not JSON or has no measured step.
  static MeasuredCosts from_trace(const std::filesystem::path& path);

  bool empty() const { return samples_.empty(); }

  /// The median of the measured times of this kind and owner, in proportion to FLOPs or bytes where they differ.
  /// If only a whole backward was measured, its halves share its time in proportion to their FLOPs. A recomputation takes as
  /// long as a forward. nullopt if nothing similar was measured, or for an operation that involves other ranks.
  std::optional<double> seconds(const StepProgram& program, const Operation& operation) const;

 private:
  struct Samples {
    std::vector<double> seconds;  ///< per FLOP or byte if `has_amount`
    bool has_amount = false;
  };

  std::optional<double> of_kind(OpKind kind, const std::string& owner, double amount) const;

  std::map<std::string, Samples> samples_;  ///< by kind and owner
};

/// Whether an operation only computes: it needs a core and no other rank.
bool is_computation(const Operation& operation);

/// FLOPs, or else bytes of memory: what the time of a computation is proportional to.
double work_amount(const Operation& operation);

/// The name of the block or unit that it works on, or "".
std::string owner_name(const StepProgram& program, const Operation& operation);

}  // namespace stepforge
