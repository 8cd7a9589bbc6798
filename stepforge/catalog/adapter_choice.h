// SPDX-License-Identifier: Apache-2.0
// Which modules of a model have an adapter. Not public.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/catalog/adapter_ranks.h"
#include "stepforge/catalog/module_names.h"
#include "stepforge/config/config.h"

namespace stepforge {

/// Means all matrices of layers but those of experts and routers; not the embedding.
inline constexpr std::string_view kAllLinear = "all-linear";

/// Which modules have an adapter.
class AdapterChoice {
 public:
  /// `adapter` must outlive it.
  explicit AdapterChoice(const AdapterConfig& adapter)
      : ranks(adapter),
        adapter_(adapter),
        targets_("adapter.targets", without_all(adapter.targets)),
        all_(std::ranges::find(adapter.targets, kAllLinear) != adapter.targets.end()) {}

  AdapterRanks ranks;

  /// Whether there may be adapters outside of layers: not if some layers are named.
  bool has_others() const { return adapter_.layers.empty(); }
  bool has_layer(int layer) const {
    return adapter_.layers.empty() || std::ranges::find(adapter_.layers, layer) != adapter_.layers.end();
  }
  /// Whether a text of adapter.targets matches the name; all-linear is none.
  bool names(std::string_view module) { return targets_.find(module) >= 0; }
  bool targets(const std::string& module) { return targets_by_name(module) || all_; }
  /// Of a module that all-linear does not mean, such as an expert.
  bool targets_by_name(const std::string& module) {
    modules_.push_back(module);
    return names(module);
  }
  /// Throws UsageError if a name matches no module that can have an adapter.
  void require_found(int64_t layers) const;

 private:
  static std::vector<std::string> without_all(std::vector<std::string> texts) {
    std::erase(texts, kAllLinear);
    return texts;
  }

  const AdapterConfig& adapter_;
  ModuleNames targets_;
  bool all_;
  std::vector<std::string> modules_;  ///< that could have one
};

}  // namespace stepforge
