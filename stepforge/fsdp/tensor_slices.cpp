// SPDX-License-Identifier: Apache-2.0
#include "stepforge/fsdp/tensor_slices.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/comm/gather.h"

namespace stepforge {

namespace {

/// The entry of `slices` for this tensor; null if there is none.
const TensorSliceOf* find_slice(const std::vector<TensorSliceOf>& slices, const at::Tensor& parameter) {
  const auto found = std::ranges::find_if(
      slices, [&](const TensorSliceOf& slice) { return slice.parameter.is_same(parameter); });
  return found == slices.end() ? nullptr : &*found;
}

/// Why a parameter cannot be this slice, or "".
std::string place_fault(const NamedParameter& parameter, const TensorSliceOf& slice) {
  const std::vector<int64_t> sizes = parameter.tensor.sizes().vec();
  const auto refuse = [&](std::string_view reason) {
    return format("sliced_params: parameter {} is a slice {} at {} of a tensor of shape {}: {}",
                  parameter.name, shape_text(sizes), shape_text(slice.offsets), shape_text(slice.shape),
                  reason);
  };
  if (sizes.empty() || slice.offsets.size() != sizes.size() || slice.shape.size() != sizes.size())
    return refuse("all three must have the same number of dimensions, at least one");
  if (!contains(whole_slice(slice.shape), {slice.offsets, sizes})) return refuse("it must lie inside");
  return "";
}

/// Why slices at these places do not make up a tensor of `shape`, or "".
std::string division_fault(const std::vector<int64_t>& shape, const std::vector<TensorSlice>& places) {
  int64_t covered = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    covered += places[i].elements();
    for (size_t j = 0; j < i; ++j) {
      if (!intersection(places[j], places[i])) continue;
      return format(
          "the slices of ranks {} and {} overlap: {} and {}; leave out parameters that all ranks hold whole",
          j, i, slice_text(places[j]), slice_text(places[i]));
    }
  }
  const int64_t elements = whole_slice(shape).elements();
  if (covered == elements) return "";
  return format(
      "the slices of all ranks cover {} of the {} elements of {}; the degree of tensor parallelism is {}, "
      "the last one of the mesh {{replicas, shards, tensor}}",
      covered, elements, shape_text(shape), places.size());
}

/// Throws if this rank or another one of tensor parallelism has a fault ("" if it has none).
void require_slices(Communicator* tensor_ranks, const std::string& own) {
  std::vector<std::string> faults;
  if (tensor_ranks != nullptr) faults = gather_texts(*tensor_ranks, own);
  if (!own.empty()) throw UsageError(own);
  for (size_t rank = 0; rank < faults.size(); ++rank) {
    if (!faults[rank].empty())
      throw UsageError(format("rank {} of tensor parallelism: {}", rank, faults[rank]));
  }
}

/// Throws on all ranks of tensor parallelism unless they have the same parameters. `own`: those of this rank.
void require_same(Communicator* tensor_ranks, const std::string& own) {
  if (tensor_ranks == nullptr) return;
  const std::vector<std::string> texts = gather_texts(*tensor_ranks, own);
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    throw UsageError(
        format("all ranks of tensor parallelism must have the same parameters, and the same ones in "
               "sliced_params: rank 0 has {}; rank {} has {}",
               texts[0], rank, texts[rank]));
  }
}

}  // namespace

ParameterSpec parameter_spec(const NamedParameter& parameter, const std::vector<TensorSliceOf>& slices) {
  ParameterSpec spec{.name = parameter.name, .shape = parameter.tensor.sizes().vec(), .sub_tensors = {}};
  if (const TensorSliceOf* slice = find_slice(slices, parameter.tensor)) {
    spec.sub_tensors.push_back({.name = "weight",
                                .hf_name = parameter.name,
                                .rows = spec.shape.at(0),
                                .init = {},
                                .offsets = slice->offsets,
                                .tensor_shape = slice->shape});
  }
  return spec;
}

std::vector<int64_t> whole_shape(const ParameterSpec& parameter) {
  return parameter.is_sliced() ? parameter.tensor_shape(0) : parameter.shape;
}

TensorSlice place_in_whole(const ParameterSpec& parameter) {
  return parameter.is_sliced() ? parameter.slice_of(0) : whole_slice(parameter.shape);
}

std::vector<ShardSlice> parts_of_whole(const UnitStore& unit, size_t index) {
  const TensorSlice place = place_in_whole(unit.spec().parameters.at(index));
  std::vector<ShardSlice> parts = unit.slices(index);
  for (ShardSlice& part : parts) part.slice = moved(std::move(part.slice), place.offsets);
  return parts;
}

std::vector<TensorSlice> places_of_ranks(Communicator* tensor_ranks, const TensorSlice& own) {
  if (tensor_ranks == nullptr) return {own};
  const std::vector<int64_t> offsets = gather_values(*tensor_ranks, own.offsets);
  const std::vector<int64_t> sizes = gather_values(*tensor_ranks, own.sizes);
  const auto dimensions = std::ssize(own.sizes);
  std::vector<TensorSlice> places;
  for (auto begin = int64_t{0}; begin < std::ssize(sizes); begin += dimensions) {
    places.push_back({{offsets.begin() + begin, offsets.begin() + begin + dimensions},
                      {sizes.begin() + begin, sizes.begin() + begin + dimensions}});
  }
  return places;
}

void check_slices(const ShardMesh& mesh, const std::vector<NamedParameter>& parameters,
                  const std::vector<TensorSliceOf>& slices) {
  std::vector<std::string> texts;
  std::vector<std::string> faults;
  for (const NamedParameter& parameter : parameters) {
    const TensorSliceOf* slice = find_slice(slices, parameter.tensor);
    const std::vector<int64_t> shape = slice != nullptr ? slice->shape : parameter.tensor.sizes().vec();
    texts.push_back(
        format("{} {}{}", parameter.name, shape_text(shape), slice != nullptr ? " in slices" : ""));
    if (slice == nullptr) continue;
    if (std::string fault = place_fault(parameter, *slice); !fault.empty())
      faults.push_back(std::move(fault));
  }
  require_slices(mesh.tensor_ranks(), join(faults, "; "));
  require_same(mesh.tensor_ranks(), join(texts, ", "));
  for (const NamedParameter& parameter : parameters) {
    const ParameterSpec spec = parameter_spec(parameter, slices);
    if (!spec.is_sliced()) continue;
    const std::string fault =
        division_fault(whole_shape(spec), places_of_ranks(mesh.tensor_ranks(), place_in_whole(spec)));
    if (!fault.empty()) throw UsageError(format("sliced_params: parameter {}: {}", parameter.name, fault));
  }
}

}  // namespace stepforge
