// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/adapter_parameters.h"

#include <cmath>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/adapters.h"
#include "stepforge/catalog/module_names.h"

namespace stepforge {

namespace {

/// A tensor [rows, columns] of an adapter, of which a rank has what it has of the same rows, or columns, of `base`.
SubTensor adapter_tensor(const std::string& name, const std::string& hf_name, int64_t rows,
                         std::vector<int64_t> whole, std::vector<int64_t> offsets) {
  SubTensor made{name, hf_name, rows, {}};
  if (offsets.empty()) return made;
  made.offsets = std::move(offsets);
  made.tensor_shape = std::move(whole);
  return made;
}

/// Of the embedding and the head, which have all tokens. Norms would be those of the whole vocabulary, and a part that is taken
/// from one of two tied weights would be taken from both.
void refuse_others(const std::string& module, const AdapterConfig& adapter) {
  if (adapter.type == AdapterType::dora)
    throw UsageError(
        format("adapter.targets names {}, which dora has no norms for; set adapter.type = \"lora\", or name "
               "other modules",
               module));
  if (adapter.takes_parts())
    throw UsageError(format(
        "adapter.targets names {}, which adapter.init = \"pissa\" takes no parts of; set another init, or "
        "name other modules",
        module));
}

}  // namespace

Initializer initial_a(AdapterInit init, int64_t rank, int64_t columns) {
  if (init == AdapterInit::gaussian) return {Initializer::Kind::normal, 1.0 / static_cast<double>(rank)};
  return {Initializer::Kind::uniform, 1.0 / std::sqrt(static_cast<double>(columns))};
}

std::optional<Adapter> head_adapter_of(const ParameterSpec& weight, const UnitSpec& unit,
                                       AdapterChoice& choice, const AdapterConfig& adapter) {
  ParameterSpec head = weight;
  head.name = kAdaptedHead;
  head.tag = ParameterTag::head;
  head.sub_tensors.front().hf_name = "lm_head.weight";
  auto made = adapter_of(head, unit, choice, adapter);
  if (made) refuse_others(std::string(module_of(head.sub_tensors.front().hf_name)), adapter);
  return made;
}

std::optional<Adapter> embedding_adapter_of(const ParameterSpec& table, const UnitSpec& unit,
                                            AdapterChoice& choice, const AdapterConfig& adapter) {
  const SubTensor& tensor = table.sub_tensors.front();
  const std::string module(module_of(tensor.hf_name));
  if (!choice.targets_by_name(module)) return std::nullopt;
  refuse_others(module, adapter);
  const int64_t rank = choice.ranks.rank(module);
  const std::string hf_name = format("{}{}", kAdapterPrefix, module);
  SubTensor a = adapter_tensor(
      "weight", format("{}{}", hf_name, kEmbeddingSuffixA), tensor.rows, {table.tensor_shape(0)[0], rank},
      tensor.is_slice() ? std::vector{tensor.offsets[0], int64_t{0}} : std::vector<int64_t>());
  SubTensor b{"weight",
              format("{}{}", hf_name, kEmbeddingSuffixB),
              table.shape.at(1),
              {Initializer::Kind::normal, 1.0}};
  return Adapter{.a = {table.name + ".lora_A", {tensor.rows, rank}, {std::move(a)}, ParameterTag::embedding},
                 .b = {{table.name + ".lora_B.weight", {table.shape[1], rank}, {std::move(b)}}},
                 .magnitudes = {},
                 .low_rank = {.parts = {{0, 0, choice.ranks.scale(module)}}},
                 .division = table.division(),
                 .sums = unit.mesh == UnitMesh::rows};
}

std::optional<Adapter> adapter_of(const ParameterSpec& base, const UnitSpec& unit, AdapterChoice& choice,
                                  const AdapterConfig& adapter) {
  Adapter made{.a = {base.name + ".lora_A", {0, base.shape.at(1)}, {}},
               .b = {},
               .magnitudes = {},
               .low_rank = {},
               .division = base.division(),
               .sums = unit.mesh == UnitMesh::rows};
  int64_t row = 0;
  for (size_t i = 0; i < base.sub_tensors.size(); ++i) {
    const SubTensor& tensor = base.sub_tensors[i];
    const int64_t begin = std::exchange(row, row + tensor.rows);
    const std::string module(module_of(tensor.hf_name));
    if (!(base.tag == ParameterTag::matrix ? choice.targets(module) : choice.targets_by_name(module)))
      continue;
    const int64_t rank = choice.ranks.rank(module);
    const std::vector<int64_t> whole = base.tensor_shape(i);
    const std::string hf_name = format("{}{}", kAdapterPrefix, module);
    SubTensor a =
        adapter_tensor(tensor.name, format("{}{}", hf_name, kSuffixA), rank, {rank, whole[1]},
                       made.division == Division::columns ? std::vector{int64_t{0}, tensor.offsets[1]}
                                                          : std::vector<int64_t>());
    a.init = initial_a(adapter.init, rank, whole[1]);
    SubTensor b = adapter_tensor("weight", format("{}{}", hf_name, kSuffixB), tensor.rows, {whole[0], rank},
                                 made.division == Division::rows ? std::vector{tensor.offsets[0], int64_t{0}}
                                                                 : std::vector<int64_t>());
    made.b.push_back({.name = format("{}.lora_B.{}", base.name, tensor.name),
                      .shape = {tensor.rows, rank},
                      .sub_tensors = {std::move(b)},
                      .lr_factor = adapter.b_lr_ratio});
    if (adapter.type == AdapterType::dora) {
      SubTensor magnitude = adapter_tensor(
          "weight", format("{}{}", hf_name, kMagnitudeSuffix), tensor.rows, {whole[0]},
          made.division == Division::rows ? std::vector{tensor.offsets[0]} : std::vector<int64_t>());
      made.magnitudes.push_back({.name = format("{}.lora_magnitude.{}", base.name, tensor.name),
                                 .shape = {tensor.rows},
                                 .sub_tensors = {std::move(magnitude)},
                                 .tag = ParameterTag::magnitude});
    }
    made.low_rank.parts.push_back({made.a.shape[0], begin, choice.ranks.scale(module)});
    made.a.shape[0] += rank;
    made.a.sub_tensors.push_back(std::move(a));
  }
  if (made.b.empty()) return std::nullopt;
  return made;
}

}  // namespace stepforge
