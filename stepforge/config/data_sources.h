// SPDX-License-Identifier: Apache-2.0
// Trees of data sources.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "stepforge/config/config.h"

namespace stepforge {

/// An entry of a list of sources or of its groups.
struct DataSourceAt {
  std::string place;  ///< in the configuration: "data.sources.1.sources.0"
  const DataSourceConfig* source = nullptr;
};

/// All entries of the list at `place` and of its groups; a group comes before its sources.
std::vector<DataSourceAt> all_entries(std::string_view place, const std::vector<DataSourceConfig>& sources);

/// The same without the groups.
std::vector<DataSourceAt> leaf_sources(std::string_view place, const std::vector<DataSourceConfig>& sources);

/// Whether an epoch of the list has a whole number of rows of each source, because there is only one, or all have
/// epochs.
bool has_exact_epoch(const std::vector<DataSourceConfig>& sources);

/// Whether a source of the training data is conversations or instructions.
bool trains_on_conversations(const DataConfig& data);

/// The packing if none is set: best_fit if a source of the training data has conversations or instructions, which concat
/// would cut; else the default of DataConfig.
Packing default_packing(const DataConfig& data);

}  // namespace stepforge
