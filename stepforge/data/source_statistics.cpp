// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/source_statistics.h"

#include <algorithm>

#include "stepforge/base/format.h"

namespace stepforge {

std::vector<SourceStatistics> source_statistics(const RowStream& stream,
                                                const std::vector<std::string>& paths) {
  constexpr double kMillion = 1e6;
  std::vector<SourceStatistics> statistics;
  for (size_t i = 0; i < stream.sources().size(); ++i) {
    const auto& [name, source, rows] = stream.sources()[i];
    const double share = stream.share(i);
    statistics.push_back({.name = name,
                          .path = paths.at(i),
                          .documents = source->documents(),
                          .tokens = source->tokens(),
                          .rows = source->rows(),
                          .share = share,
                          .epochs_per_million = kMillion * share / static_cast<double>(source->rows())});
  }
  return statistics;
}

std::vector<std::string> statistics_table(const std::vector<SourceStatistics>& sources) {
  const std::string header = "source";
  size_t width = header.size();
  for (const SourceStatistics& source : sources) width = std::max(width, source.name.size());
  std::vector<std::string> lines;
  const auto add = [&](const std::string& name, const auto&... cells) {
    lines.push_back(format("{:<{}}  {:>14}  {:>18}  {:>14}  {:>8}  {:>14}", name, width, cells...));
  };
  add(header, "documents", "tokens", "rows", "share", "epochs/1M rows");
  for (const SourceStatistics& source : sources) {
    add(source.name, with_thousands(source.documents), with_thousands(source.tokens),
        with_thousands(source.rows), format("{:.2f}%", 100.0 * source.share),
        format("{:.2f}", source.epochs_per_million));
  }
  return lines;
}

}  // namespace stepforge
