// SPDX-License-Identifier: Apache-2.0
#include "stepforge/checkpoint/hf_folder.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json.h"
#include "stepforge/base/staged.h"
#include "stepforge/base/tensor_slice.h"
#include "stepforge/catalog/adapters.h"
#include "stepforge/catalog/hf_config.h"
#include "stepforge/catalog/layers.h"
#include "stepforge/catalog/stacked_experts.h"
#include "stepforge/checkpoint/shard_slices.h"
#include "stepforge/checkpoint/stored_weight.h"
#include "stepforge/checkpoint/tensor_comparison.h"
#include "stepforge/checkpoint/tensor_names.h"
#include "stepforge/checkpoint/weight_reader.h"
#include "stepforge/tensorfile/hf_index.h"
#include "stepforge/tensorfile/safetensors.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

/// Tensors that are ignored: buffers of older exports, and optimizer state in a checkpoint.
bool is_beside_weights(std::string_view name) {
  return name.ends_with("rotary_emb.inv_freq") || name.starts_with(kOptimizerPrefix);
}

/// Whether the tensor belongs to a layer of multi-token prediction that the model does not have: "model.layers.61.*" of a
/// model with 61 layers, which are numbered from 0, in a family with such layers.
bool is_of_further_layer(std::string_view name, const ModelSpec& model) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return false;
  name.remove_prefix(kLayers.size());
  int64_t layer = -1;
  std::from_chars(name.data(), name.data() + name.size(), layer);
  return layer >= model.layers + model.ahead && model.further_layers;
}

constexpr std::string_view kVocabularyHead = "lm_head.weight";

/// The mean over the rows of a matrix, fp64.
at::Tensor mean_row(WeightReader& reader) {
  const int64_t rows = reader.shape().at(0);
  const int64_t columns = reader.shape().at(1);
  at::Tensor sum = at::zeros({columns}, at::device(at::kCPU).dtype(at::kDouble));
  const at::Tensor row = at::empty({columns}, at::device(at::kCPU).dtype(at::kFloat));
  for (int64_t i = 0; i < rows; ++i) {
    reader.read(whole_slice(reader.shape()), i * columns, row);
    sum += row;
  }
  return sum / static_cast<double>(rows);
}

bool is_vocabulary(const ParameterSpec& parameter) {
  return parameter.tag == ParameterTag::embedding || parameter.tag == ParameterTag::head;
}

/// Fills the rows that the stored embedding and head lack with the mean of the others.
void fill_new_tokens(const TensorFolder& folder, const TensorComparison& comparison, ModelStore& store) {
  for (const NamedTensor& tensor : named_tensors(store)) {
    const UnitStore& unit = store.unit(tensor.unit);
    const auto usable = comparison.usable(tensor.name);
    if (!usable || !is_vocabulary(unit.spec().parameters[tensor.parameter])) continue;
    WeightReader reader(folder, tensor.name);
    at::Tensor mean;
    for (const auto& [slice, local] : shard_slices(unit, tensor)) {
      const auto known = intersection(slice, *usable);
      const int64_t done = known ? known->elements() : 0;
      if (done == slice.elements()) continue;
      if (!mean.defined()) mean = mean_row(reader);
      unit.master()
          .narrow(0, local + done, slice.elements() - done)
          .view({-1, slice.sizes[1]})
          .copy_(mean.narrow(0, slice.offsets[1], slice.sizes[1]));
    }
  }
}

/// Whether two tensors of one type and shape hold the same bytes.
bool equal_bytes(const TensorFolder& folder, const StoredTensor& left, const StoredTensor& right) {
  const TensorSlice whole = whole_slice(left.shape);
  const int64_t elements = whole.elements();
  const auto size = static_cast<size_t>(dtype_bytes(left.dtype));
  std::vector<std::byte> chunks[2];
  for (int64_t begin = 0; begin < elements; begin += kWeightChunk) {
    const int64_t end = std::min(begin + kWeightChunk, elements);
    for (auto& chunk : chunks) chunk.resize(static_cast<size_t>(end - begin) * size);
    folder.read(left.name, whole, begin, end, chunks[0]);
    folder.read(right.name, whole, begin, end, chunks[1]);
    if (chunks[0] != chunks[1]) return false;
  }
  return true;
}

constexpr const char* kUntie =
    "to which the model ties it; to keep both, untie the model: "
    "\"tie_word_embeddings\": false in config.json, model.tie_embeddings = false in a Stepforge config";
constexpr const char* kSharedA =
    "and with adapter.experts = \"shared_a\" all experts of a layer have one A; set it to \"each\"";
constexpr const char* kShared =
    "which layers of multi-token prediction share with the model; to leave these layers out, set "
    "model.n_mtp_layers = 0, or \"num_nextn_predict_layers\": 0 in config.json";

/// The fault of the second copy of a tensor, or "". `why`: what makes it one, and the remedy.
std::string fault_of_copy(const TensorFolder& folder, const StoredTensor& copy,
                          const std::string& original_name, const char* why) {
  const StoredTensor* original = folder.find(original_name);
  if (original == nullptr) return "";  // reported as missing
  if (copy.dtype != original->dtype || copy.shape != original->shape) {
    return format("is {} {}, but tied to {}, which is {} {}", safetensors_name(copy.dtype),
                  shape_text(copy.shape), original_name, safetensors_name(original->dtype),
                  shape_text(original->shape));
  }
  if (equal_bytes(folder, copy, *original)) return "";
  return format("differs from {}, {}", original_name, why);
}

/// `model` is the whole model that the folder must hold. `merges`: it may have tensors of adapters besides.
TensorComparison require_fit(const TensorFolder& folder, const ModelSpec& model,
                             const HfImportOptions& options = {}, bool merges = false) {
  TensorComparison comparison(folder);
  std::vector<NamedTensor> tensors = named_tensors(model);
  const auto parameter_of = [&](const NamedTensor& tensor) -> const ParameterSpec& {
    return model.units.at(tensor.unit).parameters[tensor.parameter];
  };
  std::erase_if(tensors, [&](const NamedTensor& tensor) {
    if (options.new_score && parameter_of(tensor).tag == ParameterTag::score) return true;
    if (options.tensors == ImportedTensors::factors) return !is_adapter_factor(tensor.name);
    if (options.tensors == ImportedTensors::trained) return !model.units.at(tensor.unit).trainable;
    return options.tensors == ImportedTensors::base && is_adapter_tensor(tensor.name);
  });
  for (NamedTensor& tensor : tensors) {
    if (options.stored_vocabulary > 0 && is_vocabulary(parameter_of(tensor)))
      tensor.shape.at(0) = options.stored_vocabulary;
  }
  expect_weights(comparison, folder, tensors);
  const auto allow_copy = [&](const std::string& hf_name, const std::string& original, const char* why) {
    comparison.allow(hf_name, [&folder, original, why](const StoredTensor& copy) {
      return fault_of_copy(folder, copy, original, why);
    });
  };
  for (const TieSpec& tie : model.ties)
    allow_copy(tie.hf_alias, model.find_parameter(tie.parameter)->sub_tensors.front().hf_name, kUntie);
  for (const CopySpec& copy : model.copies)
    allow_copy(copy.hf_name, copy.original, is_adapter_tensor(copy.hf_name) ? kSharedA : kShared);
  const fs::path where = folder.files().at(0).path().parent_path();
  comparison.finish(
      format("the weights in {} do not fit the model", where.string()),
      [&](std::string_view name) {
        return is_beside_weights(name) || is_of_further_layer(name, model) ||
               ((merges || options.tensors == ImportedTensors::base) && is_adapter_tensor(name)) ||
               (options.tensors == ImportedTensors::trained && name.ends_with(kBaseCopySuffix)) ||
               (options.new_score && name == kVocabularyHead);
      },
      options.accepted);
  return comparison;
}

void require_in_range(const std::string& name, const at::Tensor& wide, const at::Tensor& halves) {
  const auto* values = wide.const_data_ptr<float>();
  const auto* rounded = halves.const_data_ptr<at::Half>();
  for (int64_t i = 0; i < wide.numel(); ++i) {
    if (std::isfinite(values[i]) && !std::isfinite(static_cast<float>(rounded[i]))) {
      throw Error(
          format("{} holds {}, beyond fp16's range of +-65504; export as bf16 or fp32", name, values[i]));
    }
  }
}

/// A tensor of an export, and the tensors of the model that it consists of, in order.
struct ExportedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<NamedTensor> sources;
};

/// All tensors of the model, and copies of some under other names. The tensors in a stacked one follow each other in their
/// parameter, in the same order.
std::vector<ExportedTensor> exported_tensors(const ModelSpec& model, bool stacked_experts) {
  std::vector<ExportedTensor> tensors;
  for (NamedTensor& tensor : named_tensors(model)) {
    const auto place = stacked_experts ? stacked_place(tensor.name) : std::nullopt;
    const std::string& name = place ? place->tensor : tensor.name;
    if (tensors.empty() || tensors.back().name != name) tensors.push_back({name, {}, {}});
    tensors.back().shape = place ? place->shape_up_to(tensor.shape) : tensor.shape;
    tensors.back().sources.push_back(std::move(tensor));
  }
  for (const CopySpec& copy : model.copies) {
    const auto source = std::ranges::find(tensors, copy.original, &ExportedTensor::name);
    tensors.push_back({copy.hf_name, source->shape, source->sources});
  }
  return tensors;
}

void require_stackable(const ModelSpec& model) {
  for (const NamedTensor& tensor : named_tensors(model))
    if (stacked_place(tensor.name)) return;
  throw UsageError(
      format("--stacked-experts: the family \"{}\" has one layout in Hugging Face files; leave it out",
             model.family));
}

/// Squares of what adapters add to weights, and of the rounding errors of the sums.
struct MergeSums {
  double added = 0.0;
  double errors = 0.0;

  void add(const at::Tensor& before, const at::Tensor& after, const at::Tensor& rounded) {
    added += (after - before).to(at::kDouble).square().sum().item<double>();
    errors += (rounded.to(at::kFloat) - after).to(at::kDouble).square().sum().item<double>();
  }
};

/// Writes one tensor as `dtype`, or the next part of tensor `name`.
void write_narrowed(SafetensorsWriter& writer, const TensorFolder& weights, const std::string& name,
                    const NamedTensor& tensor, DType dtype, const AdapterDeltas* adapters, MergeSums& sums) {
  WeightReader reader(weights, tensor.name);
  const bool merged = adapters != nullptr && adapters->changes(tensor.name);
  const int64_t most = std::min(chunk_of_rows(tensor.shape), tensor.elements);
  const at::Tensor wide = at::empty({most}, at::device(at::kCPU).dtype(at::kFloat));
  const at::Tensor narrow = at::empty({most}, at::device(at::kCPU).dtype(scalar_type(dtype)));
  for (int64_t begin = 0; begin < tensor.elements; begin += most) {
    const int64_t count = std::min(most, tensor.elements - begin);
    const at::Tensor values = wide.narrow(0, 0, count);
    const at::Tensor rounded = narrow.narrow(0, 0, count);
    reader.read(whole_slice(tensor.shape), begin, values);
    const at::Tensor before = merged ? values.clone() : at::Tensor();
    if (merged) adapters->add_to(tensor.name, begin, values);
    rounded.copy_(values);
    if (merged) sums.add(before, values, rounded);
    if (dtype == DType::f16) require_in_range(tensor.name, values, rounded);
    writer.write(name, {static_cast<const std::byte*>(rounded.const_data_ptr()), rounded.nbytes()});
  }
}

/// State of blocks, such as the correction of a router, stays fp32.
MergeError write_weights(const fs::path& folder, const ModelSpec& model, const TensorFolder& weights,
                         const HfExportOptions& options) {
  const std::vector<ExportedTensor> tensors = exported_tensors(model, options.stacked_experts);
  std::vector<TensorSpec> specs;
  for (const ExportedTensor& tensor : tensors) {
    const bool state = model.units.at(tensor.sources.front().unit).state;
    specs.push_back({tensor.name, state ? DType::f32 : options.dtype, tensor.shape});
  }
  const std::vector<ShardPlan> shards = plan_shards(specs, options.max_shard_bytes);
  MergeSums sums;
  for (const ShardPlan& shard : shards) {
    std::vector<TensorSpec> shard_specs;
    for (const size_t i : shard.tensors) shard_specs.push_back(specs[i]);
    // transformers refuses files without this entry.
    SafetensorsWriter writer(folder / shard.file_name, shard_specs, {{"format", "pt"}});
    for (const size_t i : shard.tensors) {
      for (const NamedTensor& source : tensors[i].sources)
        write_narrowed(writer, weights, tensors[i].name, source, specs[i].dtype, options.adapters, sums);
    }
    writer.finish();
  }
  if (shards.size() > 1) write_hf_index(folder / kIndexFileName, index_of_shards(specs, shards));
  return {sums.added > 0 ? std::sqrt(sums.errors / sums.added) : 0.0};
}

}  // namespace

void import_weights(const TensorFolder& weights, const ModelSpec& model, ModelStore& store,
                    const HfImportOptions& options) {
  const at::NoGradGuard no_grad;
  const TensorComparison comparison = require_fit(weights, model, options);
  load_masters(weights, comparison, store, options.taken);
  if (options.stored_vocabulary > 0) fill_new_tokens(weights, comparison, store);
}

bool has_score(const TensorFolder& weights) {
  return weights.find(kScoreTensor) != nullptr;
}

bool has_adapters(const TensorFolder& weights) {
  return std::ranges::any_of(weights.names(),
                             [](const std::string& name) { return is_adapter_tensor(name); });
}

std::string left_out(const TensorFolder& weights, const ModelSpec& model) {
  const std::vector<std::string> names = weights.names();
  const auto count =
      std::ranges::count_if(names, [&](const std::string& name) { return is_of_further_layer(name, model); });
  if (count == 0) return "";
  return format(
      "{} tensors of layers after the {} of the model are left out: they predict further tokens (MTP), and "
      "an export does not have them; model.n_mtp_layers says how many such layers are trained",
      count, model.layers + model.ahead);
}

void import_hf(const fs::path& folder, const ModelSpec& model, ModelStore& store) {
  import_weights(open_hf_weights(folder), model, store);
}

MergeError export_hf(const fs::path& folder, const ModelConfig& config, const ModelSpec& model,
                     const TensorFolder& weights, const Tokenizer* tokenizer,
                     const HfExportOptions& options) {
  const at::NoGradGuard no_grad;
  std::error_code failure;
  if (fs::exists(fs::symlink_status(folder, failure))) {
    throw UsageError(
        format("{} exists already and is not overwritten; choose a different folder", folder.string()));
  }
  if (std::find(kWeightTypes.begin(), kWeightTypes.end(), options.dtype) == kWeightTypes.end()) {
    throw UsageError(format("weights are exported as fp32, bf16 or fp16, not {}", dtype_name(options.dtype)));
  }
  if (options.stacked_experts) require_stackable(model);
  require_fit(weights, model, {}, options.adapters != nullptr);
  StagedFolder staged(folder);
  const MergeError error = write_weights(staged.staging(), model, weights, options);
  const Json generation =
      hf_generation_config(options.generation, tokenizer == nullptr ? std::nullopt : tokenizer->bos_id(),
                           tokenizer == nullptr ? std::nullopt : tokenizer->eos_id());
  write_file_atomic(staged.staging() / "config.json",
                    hf_config(config, options.dtype, generation).dump(2) + "\n");
  write_file_atomic(staged.staging() / kGenerationFileName, generation.dump(2) + "\n");
  if (tokenizer != nullptr) tokenizer->save_pretrained(staged.staging());
  staged.publish();
  return error;
}

}  // namespace stepforge
