// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/optimizer_slots.h"

#include <algorithm>
#include <array>

namespace stepforge {

OptimizerName optimizer_of(const OptimizerConfig& settings, const ParameterSpec& parameter) {
  const bool is_matrix = parameter.tag == ParameterTag::matrix && parameter.shape.size() == 2;
  return settings.name == OptimizerName::muon && !is_matrix ? OptimizerName::adamw : settings.name;
}

std::span<const std::string_view> optimizer_slots(const OptimizerConfig& settings,
                                                  const ParameterSpec& parameter) {
  static constexpr std::array<std::string_view, 2> kMoments = {"exp_avg", "exp_avg_sq"};
  static constexpr std::array<std::string_view, 1> kMomentum = {"momentum_buffer"};
  switch (optimizer_of(settings, parameter)) {
    case OptimizerName::adamw:
      return kMoments;
    case OptimizerName::lion:
      return std::span(kMoments).first(1);
    case OptimizerName::sgd:
      return std::span(kMomentum).first(settings.momentum > 0 ? 1 : 0);
    case OptimizerName::muon:
      return kMomentum;
  }
  return {};
}

std::vector<int> slot_counts(const OptimizerConfig& settings, const UnitSpec& unit) {
  std::vector<int> counts;
  for (const ParameterSpec& parameter : unit.parameters)
    counts.push_back(unit.trainable ? static_cast<int>(optimizer_slots(settings, parameter).size()) : 0);
  return counts;
}

int64_t update_workspace(const OptimizerConfig& settings, const UnitSpec& unit) {
  int64_t largest = 0;
  for (const ParameterSpec& parameter : unit.parameters) {
    if (optimizer_of(settings, parameter) != OptimizerName::muon) continue;
    for (const SubTensor& matrix : parameter.sub_tensors) {
      // The update and the scaled gradient in fp32; the iterate and its successor; three products of its shorter side.
      const int64_t columns = parameter.row_elements();
      const int64_t shorter = std::min(matrix.rows, columns);
      const int64_t element = dtype_bytes(settings.muon_compute);
      largest =
          std::max(largest, matrix.rows * columns * (8 + 2 * element) + 3 * shorter * shorter * element);
    }
  }
  return largest;
}

}  // namespace stepforge
