// SPDX-License-Identifier: Apache-2.0
// Adapters of the matrices of experts (adapter_parameters.h).
#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/adapter_parameters.h"
#include "stepforge/catalog/adapters.h"
#include "stepforge/catalog/module_names.h"

namespace stepforge {

namespace {

/// Tensors of the experts that are the same part of each: all gates, or all ups. In order of the experts.
struct ExpertPart {
  std::string name;  ///< "gate"
  std::vector<const SubTensor*> tensors;
  int64_t rows = 0;  ///< of one of them

  std::string module(std::size_t expert) const { return std::string(module_of(tensors[expert]->hf_name)); }
};

/// The tensors of `base` are "0.gate", "0.up", "1.gate", ...
std::vector<ExpertPart> parts_of_experts(const ParameterSpec& base) {
  std::vector<ExpertPart> parts;
  for (std::size_t i = 0; i < base.sub_tensors.size(); ++i) {
    const SubTensor& tensor = base.sub_tensors[i];
    const std::string name = tensor.name.substr(tensor.name.find('.') + 1);
    auto part = std::ranges::find(parts, name, &ExpertPart::name);
    if (part == parts.end()) part = parts.insert(part, {name, {}, base.tensor_shape(i).at(0)});
    part->tensors.push_back(&tensor);
  }
  return parts;
}

/// Why these experts cannot have adapters, and what to do about it; "" if they can.
std::string why_refused(const ParameterSpec& base, const ExpertsAttributes& experts,
                        const AdapterConfig& adapter) {
  if (experts.stacked)
    return "whose experts are one tensor with biases and have no adapters; name other modules";
  if (base.has_parts_of_matrices()) {
    return "of which a rank has some hidden units only; set parallelism.expert_tensor_parallel_degree = 1, "
           "or name no experts";
  }
  if (adapter.dropout > 0)
    return "a matrix of an expert, whose inputs are not dropped; set adapter.dropout = 0, or name no experts";
  return "";
}

/// Throws UsageError if adapter.targets names a tensor of `base`.
void refuse_named(const ParameterSpec& base, AdapterChoice& choice, const std::string& reason) {
  for (const SubTensor& tensor : base.sub_tensors) {
    const std::string_view module = module_of(tensor.hf_name);
    // One that is no module has its whole name in PEFT.
    if (choice.names(module) || choice.names(tensor.hf_name))
      throw UsageError(format("adapter.targets names {}, {}", tensor.hf_name, reason));
  }
}

/// Throws UsageError if only some experts are chosen, or with different ranks.
bool is_chosen(const ExpertPart& part, AdapterChoice& choice) {
  std::size_t named = part.tensors.size();
  std::size_t other = part.tensors.size();
  for (std::size_t e = 0; e < part.tensors.size(); ++e)
    (choice.targets_by_name(part.module(e)) ? named : other) = e;
  if (named == part.tensors.size()) return false;
  if (other < part.tensors.size()) {
    throw UsageError(format(
        "adapter.targets names {} but not {}: the experts of a layer have adapters together; name this "
        "matrix of all of them, or of none",
        part.module(named), part.module(other)));
  }
  for (std::size_t e = 1; e < part.tensors.size(); ++e) {
    if (choice.ranks.rank(part.module(e)) == choice.ranks.rank(part.module(0)) &&
        choice.ranks.alpha(part.module(e)) == choice.ranks.alpha(part.module(0)))
      continue;
    throw UsageError(
        format("adapter.patterns: {} has another rank or alpha than {}, but the experts of a layer have the "
               "same; let a pattern match this matrix of all of them",
               part.module(e), part.module(0)));
  }
  return true;
}

/// A tensor of this shape of the adapter of an expert: all of it where the expert's `base` is, and nothing on other ranks.
SubTensor tensor_of_expert(const SubTensor& base, const std::string& hf_name, std::vector<int64_t> shape) {
  SubTensor made{base.name, hf_name, shape.front(), {}};
  if (base.rows > 0) return made;
  made.rows = 0;
  made.offsets.assign(shape.size(), 0);
  made.tensor_shape = std::move(shape);
  return made;
}

std::string adapter_name(const SubTensor& base, std::string_view suffix) {
  return format("{}{}{}", kAdapterPrefix, module_of(base.hf_name), suffix);
}

/// A of one part, of each expert or one of all, and adds the names of its copies.
std::vector<SubTensor> a_of_experts(const ExpertPart& part, int64_t rank, int64_t columns, Adapter& made) {
  if (!made.shared_a) {
    std::vector<SubTensor> of_each;
    for (const SubTensor* tensor : part.tensors)
      of_each.push_back(tensor_of_expert(*tensor, adapter_name(*tensor, kSuffixA), {rank, columns}));
    return of_each;
  }
  const std::string original = adapter_name(*part.tensors.front(), kSuffixA);
  for (const SubTensor* tensor : std::span(part.tensors).subspan(1))
    made.copies.push_back({original, adapter_name(*tensor, kSuffixA)});
  return {{part.name, original, rank, {}}};
}

/// B of one part.
ParameterSpec b_of_experts(const ParameterSpec& base, const ExpertPart& part, int64_t held, int64_t rank) {
  ParameterSpec b{.name = format("{}.lora_B.{}", base.name, part.name),
                  .shape = {held * part.rows, rank},
                  .sub_tensors = {},
                  .used_share = base.used_share};
  for (const SubTensor* tensor : part.tensors)
    b.sub_tensors.push_back(tensor_of_expert(*tensor, adapter_name(*tensor, kSuffixB), {part.rows, rank}));
  return b;
}

/// The magnitudes of one part.
ParameterSpec magnitudes_of_experts(const ParameterSpec& base, const ExpertPart& part, int64_t held) {
  ParameterSpec magnitudes{.name = format("{}.lora_magnitude.{}", base.name, part.name),
                           .shape = {held * part.rows},
                           .sub_tensors = {},
                           .tag = ParameterTag::magnitude,
                           .used_share = base.used_share};
  for (const SubTensor* tensor : part.tensors)
    magnitudes.sub_tensors.push_back(
        tensor_of_expert(*tensor, adapter_name(*tensor, kMagnitudeSuffix), {part.rows}));
  return magnitudes;
}

}  // namespace

std::optional<Adapter> expert_adapter_of(const ParameterSpec& base, const ExpertsAttributes& experts,
                                         AdapterChoice& choice, const AdapterConfig& adapter) {
  if (const std::string reason = why_refused(base, experts, adapter); !reason.empty())
    refuse_named(base, choice, reason);
  if (experts.stacked) return std::nullopt;
  const int64_t columns = base.shape.at(1);
  const bool shared_a = adapter.experts == ExpertAdapters::shared_a;
  Adapter made{.a = {.name = base.name + ".lora_A",
                     .shape = {0, columns},
                     .sub_tensors = {},
                     .used_share = shared_a ? 1.0 : base.used_share},
               .b = {},
               .magnitudes = {},
               .low_rank = {.parts = {}, .experts = experts.experts},
               .sums = false,
               .shared_a = shared_a};
  std::vector<std::vector<SubTensor>> a;  // of each part
  int64_t ranks = 0;
  int64_t row = 0;
  for (const ExpertPart& part : parts_of_experts(base)) {
    const int64_t begin = std::exchange(row, row + part.rows);
    if (!is_chosen(part, choice)) continue;
    const int64_t rank = choice.ranks.rank(part.module(0));
    made.low_rank.parts.push_back({ranks, begin, choice.ranks.scale(part.module(0))});
    made.b.push_back(b_of_experts(base, part, experts.experts, rank));
    made.b.back().lr_factor = adapter.b_lr_ratio;
    if (adapter.type == AdapterType::dora)
      made.magnitudes.push_back(magnitudes_of_experts(base, part, experts.experts));
    for (SubTensor& tensor : a.emplace_back(a_of_experts(part, rank, columns, made)))
      tensor.init = initial_a(adapter.init, rank, columns);
    ranks += rank;
  }
  if (made.b.empty()) return std::nullopt;
  made.a.shape[0] = (shared_a ? 1 : experts.experts) * ranks;
  // In the order of the rows of A: expert by expert.
  for (std::size_t e = 0; e < a.front().size(); ++e)
    for (std::vector<SubTensor>& tensors : a) made.a.sub_tensors.push_back(std::move(tensors[e]));
  return made;
}

}  // namespace stepforge
