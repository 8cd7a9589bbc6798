// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/optimizer_kinds.h"

#include <algorithm>
#include <array>

#include "stepforge/base/find_item.h"
#include "stepforge/base/words.h"

namespace stepforge {

namespace {

std::vector<SlotSpec> moments(const OptimizerConfig& /*settings*/, const Extensions& /*extensions*/) {
  return {{"exp_avg"}, {"exp_avg_sq"}};
}

std::vector<SlotSpec> bf16_moments(const OptimizerConfig& /*settings*/, const Extensions& /*extensions*/) {
  return {{"exp_avg", DType::bf16}, {"exp_avg_sq", DType::bf16}};
}

std::vector<SlotSpec> eight_bit_moments(const OptimizerConfig& /*settings*/,
                                        const Extensions& /*extensions*/) {
  return {{"exp_avg", DType::u8},
          {"exp_avg_sq", DType::u8},
          {"exp_avg_scale", DType::f32, kQuantizedBlock},
          {"exp_avg_sq_scale", DType::f32, kQuantizedBlock}};
}

std::vector<SlotSpec> first_moment(const OptimizerConfig& /*settings*/, const Extensions& /*extensions*/) {
  return {{"exp_avg"}};
}

std::vector<SlotSpec> momentum(const OptimizerConfig& settings, const Extensions& /*extensions*/) {
  if (settings.momentum == 0) return {};
  return {{"momentum_buffer"}};
}

std::vector<SlotSpec> muon_momentum(const OptimizerConfig& /*settings*/, const Extensions& /*extensions*/) {
  return {{"momentum_buffer"}};
}

/// Or a stack of matrices, of experts.
bool is_matrix(const ParameterSpec& parameter) {
  return parameter.tag == ParameterTag::matrix && parameter.shape.size() >= 2;
}

/// In the whole tensors, so that every layout quantizes the same parameters.
bool has_rows_of_blocks(const ParameterSpec& parameter) {
  if (parameter.tag != ParameterTag::matrix && parameter.tag != ParameterTag::head) return false;
  for (size_t i = 0; i < parameter.sub_tensors.size(); ++i) {
    const std::vector<int64_t> shape = parameter.tensor_shape(i);
    if (shape.size() < 2 || shape.back() % kQuantizedBlock != 0) return false;
  }
  return true;
}

/// The update and the scaled gradient in fp32; the iterate and its successor; three products of its shorter side.
int64_t muon_workspace(const OptimizerConfig& settings, const Extensions& /*extensions*/, int64_t rows,
                       int64_t columns) {
  const int64_t shorter = std::min(rows, columns);
  const int64_t element = dtype_bytes(settings.muon_compute);
  return rows * columns * (8 + 2 * element) + 3 * shorter * shorter * element;
}

constexpr auto kOptimizers = std::to_array<OptimizerKind>({
    {.name = "adamw", .slots = moments, .reads = "beta1 beta2 eps"},
    {.name = "adamw_bf16", .slots = bf16_moments, .reads = "beta1 beta2 eps"},
    {.name = "adamw_8bit",
     .slots = eight_bit_moments,
     .takes = has_rows_of_blocks,
     .reads = "beta1 beta2 eps"},
    {.name = "lion", .slots = first_moment, .reads = "beta1 beta2"},
    {.name = "sgd", .slots = momentum, .reads = "momentum nesterov"},
    {.name = "muon",
     .slots = muon_momentum,
     .takes = is_matrix,
     .reads = "momentum nesterov muon_scale muon_iterations muon_compute",
     .by_matrix = true,
     .workspace = muon_workspace},
});

}  // namespace

std::span<const OptimizerKind> builtin_optimizers() {
  return kOptimizers;
}

OptimizerChoice::OptimizerChoice(const OptimizerConfig& settings, const Extensions& extensions)
    : settings_(settings),
      extensions_(extensions),
      kind_(find_item<OptimizerKind>(settings.name, kOptimizers, extensions.registry(), "optimizer.name")) {}

const OptimizerKind& OptimizerChoice::of(const ParameterSpec& parameter) const {
  const bool takes = kind_.takes == nullptr || kind_.takes(parameter);
  return takes ? kind_ : kOptimizers.front();
}

bool OptimizerChoice::reads(std::string_view option) const {
  return has_word(kind_.reads, option) ||
         (kind_.takes != nullptr && has_word(kOptimizers.front().reads, option));
}

std::vector<SlotSpec> OptimizerChoice::slots(const ParameterSpec& parameter) const {
  const OptimizerKind& kind = of(parameter);
  return kind.slots == nullptr ? std::vector<SlotSpec>() : kind.slots(settings_, extensions_);
}

UnitSlots OptimizerChoice::slots(const UnitSpec& unit) const {
  UnitSlots found;
  for (const ParameterSpec& parameter : unit.parameters)
    found.push_back(unit.trainable ? slots(parameter) : std::vector<SlotSpec>());
  return found;
}

int64_t OptimizerChoice::workspace(const UnitSpec& unit, int64_t shard_size) const {
  int64_t largest = 0;
  for (const ParameterSpec& parameter : unit.parameters) {
    const OptimizerKind& kind = of(parameter);
    if (kind.workspace == nullptr) continue;
    if (!kind.by_matrix) largest = std::max(largest, kind.workspace(settings_, extensions_, 1, shard_size));
    for (const SubTensor& tensor : parameter.sub_tensors) {
      const MatrixShape matrix = parameter.matrix_of(tensor);
      if (kind.by_matrix)
        largest = std::max(largest, kind.workspace(settings_, extensions_, matrix.rows, matrix.columns));
    }
  }
  return largest;
}

}  // namespace stepforge
