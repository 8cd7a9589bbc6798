// SPDX-License-Identifier: Apache-2.0
// What the sources of a mixture contribute to its rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stepforge/data/row_stream.h"

namespace stepforge {

struct SourceStatistics {
  std::string name;
  std::string path;  ///< as the plan names it; empty for generated rows
  int64_t documents = 0;
  int64_t tokens = 0;  ///< without padding
  int64_t rows = 0;
  double share = 0.0;               ///< of the rows of the mixture
  double epochs_per_million = 0.0;  ///< how often the source is repeated in 1,000,000 rows of the mixture
};

/// One for each source of the stream; `paths` in the same order.
std::vector<SourceStatistics> source_statistics(const RowStream& stream,
                                                const std::vector<std::string>& paths);

/// A header and a line for each source, in columns.
std::vector<std::string> statistics_table(const std::vector<SourceStatistics>& sources);

}  // namespace stepforge
