// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/stacked_experts.h"

#include <array>
#include <charconv>
#include <system_error>

#include "stepforge/catalog/expert_layers.h"

namespace stepforge {

namespace {

constexpr std::string_view kStackedRouter = "mlp.gate.weight";
constexpr std::string_view kStackedGateUp = "mlp.experts.gate_up_proj";
constexpr std::string_view kStackedDown = "mlp.experts.down_proj";

/// The names of each expert: of Qwen and DeepSeek, and of Mixtral.
const std::array<ExpertNames, 2>& names_by_expert() {
  static const std::array<ExpertNames, 2> kNames = {qwen_expert_names(), mixtral_expert_names()};
  return kNames;
}

std::string after(std::string_view prefix, std::string_view name) {
  return std::string(prefix).append(name);
}

/// Of the matrix `name` = "<number>.<matrix>" of an expert.
std::optional<StackedPlace> place_of_matrix(std::string_view prefix, std::string_view name,
                                            const ExpertNames& names) {
  int64_t expert = 0;
  const auto [end, failure] = std::from_chars(name.data(), name.data() + name.size(), expert);
  if (failure != std::errc() || expert < 0) return std::nullopt;
  name.remove_prefix(static_cast<size_t>(end - name.data()));
  if (!name.starts_with('.')) return std::nullopt;
  name.remove_prefix(1);
  if (name == names.gate) return StackedPlace{after(prefix, kStackedGateUp), expert, 0, 2};
  if (name == names.up) return StackedPlace{after(prefix, kStackedGateUp), expert, 1, 2};
  if (name == names.down) return StackedPlace{after(prefix, kStackedDown), expert};
  return std::nullopt;
}

}  // namespace

std::optional<StackedPlace> stacked_place(std::string_view hf_name) {
  for (const ExpertNames& names : names_by_expert()) {
    if (hf_name.ends_with(names.router) && names.router != kStackedRouter)
      return StackedPlace{after(hf_name.substr(0, hf_name.size() - names.router.size()), kStackedRouter)};
    const size_t at = hf_name.find(names.experts);
    if (at == std::string_view::npos) continue;
    return place_of_matrix(hf_name.substr(0, at), hf_name.substr(at + names.experts.size()), names);
  }
  return std::nullopt;
}

std::optional<TensorSlice> StackedPlace::slice_of(const std::vector<int64_t>& stacked) const {
  TensorSlice slice = whole_slice(stacked);
  if (!expert) return slice;
  if (stacked.size() < 2 || *expert >= stacked[0] || stacked[1] % parts != 0) return std::nullopt;
  slice.offsets[0] = *expert;
  slice.sizes[0] = 1;
  slice.sizes[1] = stacked[1] / parts;
  slice.offsets[1] = part * slice.sizes[1];
  return slice;
}

std::vector<int64_t> StackedPlace::shape_up_to(const std::vector<int64_t>& single) const {
  std::vector<int64_t> shape = single;
  if (!expert) return shape;
  shape.at(0) *= parts;
  shape.insert(shape.begin(), *expert + 1);
  return shape;
}

}  // namespace stepforge
