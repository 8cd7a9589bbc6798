// SPDX-License-Identifier: Apache-2.0
// Rank, alpha and scale of the adapter of each module.
#pragma once

#include <cstdint>
#include <string_view>

#include "stepforge/catalog/module_names.h"
#include "stepforge/config/config.h"

namespace stepforge {

/// Of adapters with twice the ranks and the same scales.
AdapterConfig with_doubled_ranks(AdapterConfig adapter);

class AdapterRanks {
 public:
  /// `adapter` must outlive it. Throws UsageError if a pattern is no regular expression.
  explicit AdapterRanks(const AdapterConfig& adapter);

  int64_t rank(std::string_view module);
  double alpha(std::string_view module);
  /// What B A is multiplied by: alpha / rank, or alpha / sqrt(rank) with rslora.
  double scale(std::string_view module);

  const ModuleNames& patterns() const { return patterns_; }

 private:
  /// Null if the module has none of its own.
  const AdapterPatternConfig* pattern(std::string_view module);

  const AdapterConfig& adapter_;
  ModuleNames patterns_;
};

}  // namespace stepforge
