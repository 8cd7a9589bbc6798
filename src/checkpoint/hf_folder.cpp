#include "checkpoint/hf_folder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "base/error.h"
#include "base/files.h"
#include "base/format.h"
#include "base/json.h"
#include "checkpoint/tensor_comparison.h"
#include "checkpoint/tensor_names.h"
#include "models/hf_config.h"
#include "tensorfile/safetensors.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr std::array<DType, 3> kWeightTypes = {DType::f32, DType::bf16, DType::f16};
// Elements that are converted at a time: what an import or export needs beside the model.
constexpr int64_t kChunk = int64_t{1} << 20;

bool is_rotary_buffer(std::string_view name) {
  return name.ends_with("rotary_emb.inv_freq");
}

/// What is wrong with the second copy of a tied tensor, or "".
std::string fault_of_copy(const TensorFolder& folder, const TensorEntry& copy,
                          const std::string& original_name) {
  const TensorEntry* original = folder.find(original_name);
  if (original == nullptr) return "";  // which is noted as missing
  if (copy.dtype != original->dtype || copy.shape != original->shape) {
    return format("is {} {}, but tied to {}, which is {} {}", safetensors_name(copy.dtype),
                  shape_text(copy.shape), original_name, safetensors_name(original->dtype),
                  shape_text(original->shape));
  }
  const std::span<const std::byte> left = folder.bytes(copy.name);
  const std::span<const std::byte> right = folder.bytes(original_name);
  if (std::equal(left.begin(), left.end(), right.begin(), right.end())) return "";
  return format("differs from {}, to which it is tied; set model.tie_embeddings = false to keep both",
                original_name);
}

void require_fit(const fs::path& path, const TensorFolder& folder, const ModelSpec& model,
                 const std::vector<NamedTensor>& tensors) {
  TensorComparison comparison(folder);
  for (const NamedTensor& tensor : tensors) comparison.expect(tensor.name, tensor.shape, kWeightTypes);
  for (const TieSpec& tie : model.ties) {
    const std::string& original = model.find_parameter(tie.parameter)->segments.front().hf_name;
    comparison.allow(tie.hf_alias,
                     [&](const TensorEntry& copy) { return fault_of_copy(folder, copy, original); });
  }
  comparison.finish(format("the weights in {} do not fit the model", path.string()), is_rotary_buffer);
}

/// Widens `bytes` of `dtype` into the fp32 tensor `target` [n]. The bytes may lie at any address.
void widen(std::span<const std::byte> bytes, DType dtype, const at::Tensor& target) {
  const int64_t size = dtype_bytes(dtype);
  const at::Tensor chunk = at::empty({std::min(kChunk, target.numel())}, scalar_type(dtype));
  for (int64_t begin = 0; begin < target.numel(); begin += kChunk) {
    const int64_t count = std::min(kChunk, target.numel() - begin);
    std::memcpy(chunk.data_ptr(), bytes.data() + begin * size, static_cast<size_t>(count * size));
    target.narrow(0, begin, count).copy_(chunk.narrow(0, 0, count));
  }
}

/// Writes the fp32 tensor `source` [n] as `dtype`.
void write_narrowed(SafetensorsWriter& writer, const std::string& name, const at::Tensor& source,
                    DType dtype) {
  const at::Tensor chunk = at::empty({std::min(kChunk, source.numel())}, scalar_type(dtype));
  for (int64_t begin = 0; begin < source.numel(); begin += kChunk) {
    const int64_t count = std::min(kChunk, source.numel() - begin);
    const float* values = source.data_ptr<float>() + begin;
    chunk.narrow(0, 0, count).copy_(source.narrow(0, begin, count));
    if (dtype == DType::f16) {
      const auto* halves = chunk.data_ptr<at::Half>();
      for (int64_t i = 0; i < count; ++i) {
        if (std::isfinite(values[i]) && !std::isfinite(static_cast<float>(halves[i]))) {
          throw Error(
              format("{} holds {}, beyond fp16's range of +-65504; export as bf16 or fp32", name, values[i]));
        }
      }
    }
    writer.write(name, {static_cast<const std::byte*>(chunk.data_ptr()),
                        static_cast<size_t>(count * dtype_bytes(dtype))});
  }
}

at::Tensor master_of(const ModelStore& store, const NamedTensor& tensor) {
  return store.unit(tensor.unit).master().narrow(0, tensor.offset, tensor.elements);
}

void write_weights(const fs::path& folder, const ModelSpec& model, const ModelStore& store,
                   const HfExportOptions& options) {
  const std::vector<NamedTensor> tensors = named_tensors(model);
  std::vector<TensorSpec> specs;
  for (const NamedTensor& tensor : tensors) specs.push_back({tensor.name, options.dtype, tensor.shape});
  const std::vector<ShardPlan> shards = plan_shards(specs, options.max_shard_bytes);
  for (const ShardPlan& shard : shards) {
    std::vector<TensorSpec> shard_specs;
    for (const size_t i : shard.tensors) shard_specs.push_back(specs[i]);
    // transformers refuses files that do not say for which framework they were written.
    SafetensorsWriter writer(folder / shard.file_name, shard_specs, {{"format", "pt"}});
    for (const size_t i : shard.tensors) {
      write_narrowed(writer, tensors[i].name, master_of(store, tensors[i]), options.dtype);
    }
    writer.finish();
  }
  if (shards.size() > 1) write_hf_index(folder / kIndexFileName, index_of_shards(specs, shards));
}

}  // namespace

ModelConfig hf_model_config(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  return model_from_hf_config(read_json_file(path), path.string());
}

void import_hf(const fs::path& folder, const ModelSpec& model, ModelStore& store) {
  const at::NoGradGuard no_grad;
  const TensorFolder files = TensorFolder::open(folder);
  const std::vector<NamedTensor> tensors = named_tensors(model);
  require_fit(folder, files, model, tensors);
  for (const NamedTensor& tensor : tensors) {
    const UnitStore& unit = store.unit(tensor.unit);
    const HeldRange range = unit.held(tensor.offset, tensor.offset + tensor.elements);
    const DType dtype = files.find(tensor.name)->dtype;
    const auto skipped = static_cast<size_t>((range.begin - tensor.offset) * dtype_bytes(dtype));
    widen(files.bytes(tensor.name).subspan(skipped), dtype,
          unit.master().narrow(0, range.local, range.size()));
  }
}

void export_hf(const fs::path& folder, const ModelConfig& config, const ModelSpec& model,
               const ModelStore& store, const Tokenizer* tokenizer, const HfExportOptions& options) {
  const at::NoGradGuard no_grad;
  std::error_code failure;
  if (fs::exists(fs::symlink_status(folder, failure))) {
    throw UsageError(
        format("{} exists already and is not overwritten; choose another folder", folder.string()));
  }
  if (std::find(kWeightTypes.begin(), kWeightTypes.end(), options.dtype) == kWeightTypes.end()) {
    throw UsageError(format("weights are exported as fp32, bf16 or fp16, not {}", dtype_name(options.dtype)));
  }
  StagedFolder staged(folder);
  write_weights(staged.staging(), model, store, options);
  const int64_t bos = tokenizer == nullptr ? -1 : tokenizer->bos_id().value_or(-1);
  const int64_t eos = tokenizer == nullptr ? -1 : tokenizer->eos_id().value_or(-1);
  write_file_atomic(staged.staging() / "config.json",
                    hf_config(config, options.dtype, bos, eos).dump(2) + "\n");
  write_file_atomic(staged.staging() / "generation_config.json",
                    hf_generation_config(bos, eos).dump(2) + "\n");
  if (tokenizer != nullptr) tokenizer->save_pretrained(staged.staging());
  staged.publish();
}

}  // namespace stepforge
