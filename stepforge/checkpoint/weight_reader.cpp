// SPDX-License-Identifier: Apache-2.0
#include "stepforge/checkpoint/weight_reader.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/checkpoint/shard_slices.h"
#include "stepforge/checkpoint/tensor_names.h"
#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

int64_t chunk_of_rows(const std::vector<int64_t>& shape) {
  int64_t row = 1;
  for (size_t i = 1; i < shape.size(); ++i) row *= shape[i];
  return std::max<int64_t>(1, kWeightChunk / std::max<int64_t>(1, row)) * row;
}

WeightReader::WeightReader(const TensorFolder& folder, const std::string& name) : folder_(folder) {
  if (is_mxfp4(folder, name)) {
    mxfp4_.emplace(folder, name);
  } else {
    place_ = find_weight(folder, name).value();
  }
}

void WeightReader::read_stored(const TensorSlice& slice, int64_t begin, const at::Tensor& target) {
  if (mxfp4_) {
    mxfp4_->read(slice, begin, {target.mutable_data_ptr<float>(), static_cast<size_t>(target.numel())});
  } else {
    folder_.read(place_.tensor->name, place_.slice_of(slice), begin, begin + target.numel(),
                 bytes_of(target));
  }
}

void WeightReader::read(const TensorSlice& slice, int64_t begin, const at::Tensor& target) {
  const at::ScalarType stored = mxfp4_ ? at::kFloat : scalar_type(place_.tensor->dtype);
  if (target.scalar_type() == stored && target.is_cpu()) return read_stored(slice, begin, target);
  if (!chunk_.defined())
    chunk_ = at::empty({std::min(kWeightChunk, whole_slice(shape()).elements())},
                       at::device(at::kCPU).dtype(stored));
  for (int64_t done = 0; done < target.numel(); done += kWeightChunk) {
    const at::Tensor values = chunk_.narrow(0, 0, std::min(kWeightChunk, target.numel() - done));
    read_stored(slice, begin + done, values);
    target.narrow(0, done, values.numel()).copy_(values);
  }
}

namespace {

/// Calls visit(begin, values) for chunks of whole blocks of a slice in fp32: it is never in memory as a whole.
template <typename Visit>
void read_chunks(WeightReader& reader, const TensorSlice& slice, const std::optional<TakenPart>& taken,
                 const Visit& visit) {
  const int64_t elements = slice.elements();
  const at::Tensor chunk =
      at::empty({std::min(kWeightChunk, elements)}, at::device(at::kCPU).dtype(at::kFloat));
  for (int64_t begin = 0; begin < elements; begin += kWeightChunk) {
    const at::Tensor values = chunk.narrow(0, 0, std::min(kWeightChunk, elements - begin));
    reader.read(slice, begin, values);
    if (taken) taken->take_from(slice, begin, values);
    visit(begin, values);
  }
}

/// The factors of all blocks of a tensor, of which this rank may hold a part: it is read as a whole, so that ranks need not exchange them.
TensorFactors read_factors(WeightReader& reader, const NamedTensor& tensor, const TensorSlice& usable,
                           const std::optional<TakenPart>& taken) {
  const TensorSlice whole = whole_slice(tensor.shape);
  if (usable != whole)
    throw UsageError(format("model.double_quantization needs all of {}: the files have {} of {}", tensor.name,
                            slice_text(usable), slice_text(whole)));
  TensorFactors factors(tensor.elements);
  read_chunks(reader, whole, taken,
              [&](int64_t begin, const at::Tensor& values) { factors.add(begin, values); });
  return factors;
}

}  // namespace

at::Tensor read_whole(const TensorFolder& folder, const std::string& name) {
  WeightReader reader(folder, name);
  const TensorSlice whole = whole_slice(reader.shape());
  const at::Tensor values = at::empty({whole.elements()}, at::device(at::kCPU).dtype(at::kFloat));
  for (int64_t begin = 0; begin < values.numel(); begin += kWeightChunk)
    reader.read(whole, begin, values.narrow(0, begin, std::min(kWeightChunk, values.numel() - begin)));
  return values.view(reader.shape());
}

void load_masters(const TensorFolder& folder, const TensorComparison& comparison, ModelStore& store,
                  const InitialAdapter* taken) {
  const at::NoGradGuard no_grad;
  for (const NamedTensor& tensor : named_tensors(store)) {
    const auto usable = comparison.usable(tensor.name);
    if (!usable) continue;
    UnitStore& unit = store.unit(tensor.unit);
    WeightReader reader(folder, tensor.name);
    const std::optional<TakenPart> part = taken == nullptr ? std::nullopt : taken->part_of(tensor.name);
    const std::vector<ShardSlice> all_held = shard_slices(unit, tensor);
    if (unit.spec().coded_factors && !all_held.empty())
      unit.store_factors(tensor.parameter, tensor.row, read_factors(reader, tensor, *usable, part));
    for (const auto& held : all_held) {
      // What is left of a slice are its first elements: only rows may be missing.
      const auto known = intersection(held.slice, *usable);
      if (!known) continue;
      if (unit.coded() || part)
        read_chunks(reader, *known, part,
                    [&](int64_t begin, const at::Tensor& values) { unit.store(held.local + begin, values); });
      else
        reader.read(*known, 0, unit.master().narrow(0, held.local, known->elements()));
    }
  }
}

}  // namespace stepforge
