// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/adapter_ranks.h"

#include <cmath>

namespace stepforge {

namespace {

std::vector<std::string> texts_of(const std::vector<AdapterPatternConfig>& patterns) {
  std::vector<std::string> texts;
  for (const AdapterPatternConfig& pattern : patterns) texts.push_back(pattern.pattern);
  return texts;
}

}  // namespace

AdapterConfig with_doubled_ranks(AdapterConfig adapter) {
  const double factor = adapter.rslora ? std::sqrt(2.0) : 2.0;
  adapter.rank *= 2;
  adapter.alpha *= factor;
  for (AdapterPatternConfig& pattern : adapter.patterns) {
    pattern.rank *= 2;
    pattern.alpha *= factor;
  }
  return adapter;
}

AdapterRanks::AdapterRanks(const AdapterConfig& adapter)
    : adapter_(adapter), patterns_("adapter.patterns", texts_of(adapter.patterns)) {}

int64_t AdapterRanks::rank(std::string_view module) {
  const AdapterPatternConfig* own = pattern(module);
  return own != nullptr && own->rank > 0 ? own->rank : adapter_.rank;
}

double AdapterRanks::alpha(std::string_view module) {
  const AdapterPatternConfig* own = pattern(module);
  return own != nullptr && own->alpha > 0 ? own->alpha : adapter_.alpha;
}

double AdapterRanks::scale(std::string_view module) {
  const auto rank = static_cast<double>(this->rank(module));
  return alpha(module) / (adapter_.rslora ? std::sqrt(rank) : rank);
}

const AdapterPatternConfig* AdapterRanks::pattern(std::string_view module) {
  const int index = patterns_.find(module);
  return index < 0 ? nullptr : &adapter_.patterns[static_cast<std::size_t>(index)];
}

}  // namespace stepforge
