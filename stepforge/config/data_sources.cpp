// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/data_sources.h"

#include <algorithm>
#include <iterator>

#include "stepforge/base/format.h"

namespace stepforge {

std::vector<DataSourceAt> all_entries(std::string_view place, const std::vector<DataSourceConfig>& sources) {
  std::vector<DataSourceAt> entries;
  for (size_t i = 0; i < sources.size(); ++i) {
    const std::string own = format("{}.{}", place, i);
    entries.push_back({own, &sources[i]});
    std::ranges::copy(all_entries(own + ".sources", sources[i].sources), std::back_inserter(entries));
  }
  return entries;
}

std::vector<DataSourceAt> leaf_sources(std::string_view place, const std::vector<DataSourceConfig>& sources) {
  std::vector<DataSourceAt> entries = all_entries(place, sources);
  std::erase_if(entries, [](const DataSourceAt& entry) { return !entry.source->sources.empty(); });
  return entries;
}

namespace {

/// Whether the format has conversations or instructions, as data sets of LLaMA-Factory do.
bool is_conversations(const DataSourceConfig& source) {
  switch (source.format) {
    case DataFormat::messages:
    case DataFormat::sharegpt:
    case DataFormat::alpaca:
    case DataFormat::prompt_completion:
    case DataFormat::preference:
    case DataFormat::unpaired_preference:
      return true;
    default:
      return !source.dataset.empty();
  }
}

}  // namespace

bool trains_on_conversations(const DataConfig& data) {
  return std::ranges::any_of(leaf_sources("data.sources", data.sources),
                             [](const DataSourceAt& entry) { return is_conversations(*entry.source); });
}

Packing default_packing(const DataConfig& data) {
  return trains_on_conversations(data) ? Packing::best_fit : DataConfig{}.packing;
}

bool has_exact_epoch(const std::vector<DataSourceConfig>& sources) {
  const auto is_exact = [](const DataSourceConfig& source) {
    if (source.combine == SourceCombine::mix)
      return source.sources.empty() || has_exact_epoch(source.sources);
    return std::ranges::all_of(source.sources,
                               [](const DataSourceConfig& inner) { return has_exact_epoch({inner}); });
  };
  const auto has_epochs = [](const DataSourceConfig& source) { return source.epochs > 0; };
  return (sources.size() == 1 || std::ranges::all_of(sources, has_epochs)) &&
         std::ranges::all_of(sources, is_exact);
}

}  // namespace stepforge
