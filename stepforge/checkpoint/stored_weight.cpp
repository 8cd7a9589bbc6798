// SPDX-License-Identifier: Apache-2.0
#include "stepforge/checkpoint/stored_weight.h"

#include <algorithm>
#include <map>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/catalog/stacked_experts.h"
#include "stepforge/checkpoint/mxfp4.h"

namespace stepforge {

namespace {

/// What the model needs of a tensor of all experts.
struct Stack {
  std::vector<int64_t> shape;
  const StoredTensor* single = nullptr;  ///< the tensor of one expert, if the folder has it too
};

bool is_weight_type(DType dtype) {
  return std::ranges::find(kWeightTypes, dtype) != kWeightTypes.end();
}

std::string file_of(const TensorFolder& folder, const StoredTensor& tensor) {
  return folder.files().at(tensor.parts.front().file).path().filename().string();
}

std::string fault_of_stack(const TensorFolder& folder, const StoredTensor& stored, const Stack& needed) {
  if (needed.single != nullptr) {
    return format("is in {}, and {}, which is a part of it, in {}: remove one of them",
                  file_of(folder, stored), needed.single->name, file_of(folder, *needed.single));
  }
  if (is_weight_type(stored.dtype) && stored.shape == needed.shape) return "";
  return format("is {} {} in {}, expected F32, BF16 or F16 {}", safetensors_name(stored.dtype),
                shape_text(stored.shape), file_of(folder, stored), shape_text(needed.shape));
}

/// Expects the tensors of all experts that the folder has.
void expect_stacks(TensorComparison& comparison, const TensorFolder& folder,
                   const std::vector<NamedTensor>& tensors) {
  std::map<std::string, Stack> stacks;
  for (const NamedTensor& tensor : tensors) {
    const auto place = stacked_place(tensor.name);
    if (!place || folder.find(place->tensor) == nullptr) continue;
    Stack& stack = stacks[place->tensor];
    stack.shape = std::max(stack.shape, place->shape_up_to(tensor.shape));
    if (stack.single == nullptr) stack.single = folder.find(tensor.name);
  }
  for (const auto& [name, stack] : stacks) {
    comparison.allow(name, [&](const StoredTensor& stored) { return fault_of_stack(folder, stored, stack); });
  }
}

void expect_mxfp4(TensorComparison& comparison, const TensorFolder& folder, const NamedTensor& tensor) {
  std::string fault = fault_of_mxfp4(folder, tensor.name, tensor.shape);
  comparison.allow(mxfp4_blocks(tensor.name), [&](const StoredTensor&) { return fault; });
  comparison.allow(mxfp4_scales(tensor.name), [](const StoredTensor&) { return ""; });
  if (fault.empty()) comparison.accept(tensor.name, tensor.shape);
}

/// expect_stacks() has found the faults of the tensor of all experts.
void expect_stacked(TensorComparison& comparison, const TensorFolder& folder, const NamedTensor& tensor) {
  comparison.allow(tensor.name, [](const StoredTensor&) { return ""; });
  if (folder.find(tensor.name) != nullptr) return;
  const auto place = find_weight(folder, tensor.name);
  if (place && place->shape == tensor.shape && is_weight_type(place->tensor->dtype))
    comparison.accept(tensor.name, tensor.shape);
}

}  // namespace

TensorSlice WeightPlace::slice_of(TensorSlice part) const {
  const size_t before = slice.sizes.size() - shape.size();
  part.offsets.insert(part.offsets.begin(), before, 0);
  part.sizes.insert(part.sizes.begin(), before, 1);
  return moved(std::move(part), slice.offsets);
}

std::optional<WeightPlace> find_weight(const TensorFolder& folder, const std::string& name) {
  if (const StoredTensor* tensor = folder.find(name))
    return WeightPlace{tensor, whole_slice(tensor->shape), tensor->shape};
  const auto place = stacked_place(name);
  const StoredTensor* stack = place ? folder.find(place->tensor) : nullptr;
  if (stack == nullptr) return std::nullopt;
  const auto slice = place->slice_of(stack->shape);
  if (!slice) return std::nullopt;
  return WeightPlace{stack, *slice, {slice->sizes.begin() + (place->expert ? 1 : 0), slice->sizes.end()}};
}

bool holds_weight(const TensorFolder& folder, const std::string& name) {
  return find_weight(folder, name).has_value() || is_mxfp4(folder, name);
}

std::vector<std::string> stored_names(const std::string& name) {
  std::vector<std::string> names = {name, mxfp4_blocks(name), mxfp4_scales(name)};
  if (const auto place = stacked_place(name)) names.push_back(place->tensor);
  return names;
}

void expect_weights(TensorComparison& comparison, const TensorFolder& folder,
                    const std::vector<NamedTensor>& tensors) {
  expect_stacks(comparison, folder, tensors);
  for (const NamedTensor& tensor : tensors) {
    const auto place = stacked_place(tensor.name);
    if (is_mxfp4(folder, tensor.name)) {
      expect_mxfp4(comparison, folder, tensor);
    } else if (place && folder.find(place->tensor) != nullptr) {
      expect_stacked(comparison, folder, tensor);
    } else {
      comparison.expect(tensor.name, tensor.shape, kWeightTypes);
    }
  }
}

}  // namespace stepforge
