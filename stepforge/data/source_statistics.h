// SPDX-License-Identifier: Apache-2.0
// What the sources of a mixture contribute to its rows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stepforge/base/json.h"
#include "stepforge/data/row_stream.h"
#include "stepforge/records/record_format.h"

namespace stepforge {

struct SourceStatistics {
  std::string name;
  std::string path;  ///< as the plan names it; empty for generated rows
  int64_t documents = 0;
  int64_t tokens = 0;                   ///< without padding
  std::optional<RowAccount> account{};  ///< none if the source does not count
  LossesByReason dropped{};             ///< documents that the tokenization of its text left out, by reason
  LossesByReason cut{};                 ///< what it left out of others
  int64_t rows = 0;
  double share = 0.0;               ///< of the rows of the mixture
  double epochs_per_million = 0.0;  ///< how often the source is repeated in 1,000,000 rows of the mixture
};

/// What a run keeps about them: names, paths, sizes, accounts, and what was left out or cut when the text was tokenized.
Json to_json(const std::vector<SourceStatistics>& sources);

/// One for each source of the stream; `paths` in the same order.
std::vector<SourceStatistics> source_statistics(const RowStream& stream,
                                                const std::vector<std::string>& paths);

/// A header and a line for each source, in columns, and the account of each.
std::vector<std::string> statistics_table(const std::vector<SourceStatistics>& sources);

/// "books: 1,200 documents, 40,000 tokens, ..." of each source that counts.
std::vector<std::string> account_lines(const std::vector<SourceStatistics>& sources);

}  // namespace stepforge
