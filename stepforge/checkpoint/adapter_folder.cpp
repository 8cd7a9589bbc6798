// SPDX-License-Identifier: Apache-2.0
#include "stepforge/checkpoint/adapter_folder.h"

#include <algorithm>
#include <charconv>
#include <tuple>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/staged.h"
#include "stepforge/catalog/adapter_biases.h"
#include "stepforge/catalog/adapter_ranks.h"
#include "stepforge/catalog/adapters.h"
#include "stepforge/catalog/module_names.h"
#include "stepforge/catalog/peft_config.h"
#include "stepforge/checkpoint/shard_slices.h"
#include "stepforge/checkpoint/tensor_names.h"
#include "stepforge/checkpoint/weight_reader.h"
#include "stepforge/modelspec/calls/magnitude.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

/// Of a module with `rows` rows, whose tensors begin with `prefix`.
at::Tensor magnitudes_of(const TensorFolder& weights, const std::string& prefix, int64_t rows) {
  const std::string name = format("{}{}", prefix, kMagnitudeSuffix);
  if (weights.find(name) == nullptr)
    throw FormatError(format("the adapter is one of DoRA, but has no {}", name));
  const at::Tensor magnitudes = read_whole(weights, name);
  if (magnitudes.numel() != rows)
    throw FormatError(
        format("{} is {}, but the matrix has {} rows", name, shape_text(magnitudes.sizes().vec()), rows));
  return magnitudes.view({rows});
}

/// "lm_head.weight" of "base_model.model.lm_head.weight": a tensor of the model that was trained with the adapter.
std::string replaced_name(std::string_view name) {
  name.remove_prefix(kAdapterPrefix.size());
  if (!name.ends_with(kBaseBiasSuffix)) return std::string(name);
  return format("{}{}", name.substr(0, name.size() - kBaseBiasSuffix.size()), kBiasSuffix);
}

/// The opposite. `biases`: which modules have an adapter.
std::string saved_name(const std::string& name, const TrainedBiases& biases) {
  if (is_adapter_tensor(name)) return name;
  if (name.ends_with(kBiasSuffix) && biases.has_adapter(name))
    return format("{}{}{}", kAdapterPrefix, module_of(name), kBaseBiasSuffix);
  return format("{}{}", kAdapterPrefix, name);
}

/// A or B of an adapter that adds the same to whole weights: [A; A0] or [B, -B0].
at::Tensor beside_whole(const std::string& name, const at::Tensor& values, const InitialAdapter& taken) {
  const at::Tensor initial = read_whole(taken.factors(), name);
  return name.ends_with(kSuffixA) ? at::cat({values, initial}, 0) : at::cat({values, -initial}, 1);
}

}  // namespace

AdapterFiles open_peft_folder(const fs::path& folder) {
  const fs::path config = folder / kPeftConfigFile;
  if (!fs::exists(config)) {
    throw UsageError(
        format("{} is no adapter in the format of PEFT: it has no {}; an adapter run becomes one with "
               "`stepforge export RUN FOLDER`",
               folder.string(), kPeftConfigFile));
  }
  AdapterConfig adapter = read_peft_config(read_json_file(config), config.string());
  const fs::path file = folder / kPeftWeightsFile;
  if (!fs::exists(file))
    throw UsageError(
        format("{} has no {}; save the adapter again as safetensors", folder.string(), kPeftWeightsFile));
  TensorFolder weights({file});
  std::vector<std::string> names = weights.names();
  for (std::string& name : names) {
    if (!adapter_suffix(name).empty()) continue;
    if (!is_adapter_tensor(name) || name.find(".lora_") != std::string::npos)
      throw FormatError(
          format("{}: {} is no tensor of a LoRA or DoRA adapter of matrices or embeddings; merge the adapter "
                 "with peft",
                 file.string(), name));
    name = replaced_name(name);
  }
  weights.rename(names, "");
  for (const std::string& name : weights.names())
    if (name.ends_with(kEmbeddingSuffixA)) weights.transpose(name);
  return {std::move(adapter), std::move(weights)};
}

void AdapterDeltas::add(const AdapterConfig& config, const TensorFolder& weights, double weight,
                        bool replaces, const InitialAdapter* taken) {
  const at::NoGradGuard no_grad;
  AdapterRanks ranks(config);
  for (const std::string& name : weights.names()) {
    if (!is_adapter_tensor(name)) {
      if (!replaces) continue;
      if (weight != 1.0)
        throw UsageError(
            format("the adapter replaces {}, so that it cannot have the weight {}", name, weight));
      if (!replacements_.try_emplace(name, read_whole(weights, name)).second)
        throw UsageError(format("{} is replaced by two adapters; use one of them", name));
      continue;
    }
    // With another weight the model keeps its own.
    if (name.ends_with(kBaseCopySuffix) && replaces && weight == 1.0)
      replacements_.insert_or_assign(format("{}.weight", adapted_module(name)), read_whole(weights, name));
    const bool embeds = name.ends_with(kEmbeddingSuffixA);
    if (!embeds && !name.ends_with(kSuffixA)) continue;
    const std::string module(adapted_module(name));
    if (embeds && config.type == AdapterType::dora)
      throw FormatError(
          format("{}: magnitudes of an embedding are not read; merge the adapter with peft", name));
    const std::string prefix = format("{}{}", kAdapterPrefix, module);
    const std::string b_name = format("{}{}", prefix, embeds ? kEmbeddingSuffixB : kSuffixB);
    if (weights.find(b_name) == nullptr)
      throw FormatError(format("the adapter has {} but not {}", name, b_name));
    at::Tensor a = read_whole(weights, name);
    at::Tensor b = read_whole(weights, b_name);
    const int64_t rank = ranks.rank(module);
    if (a.dim() != 2 || b.dim() != 2 || a.size(embeds ? 1 : 0) != rank || b.size(1) != rank)
      throw FormatError(format("{} is {} and {} is {}, but the rank of {} is {}", name,
                               shape_text(a.sizes().vec()), b_name, shape_text(b.sizes().vec()), module,
                               rank));
    // The table of an embedding is W^T: the transpose of B A is added to it.
    if (embeds) std::tie(a, b) = std::pair(b.t().contiguous(), a);
    Product product{a, b * ranks.scale(module), {}, weight};
    if (const auto part = taken == nullptr ? std::nullopt : taken->part_of(module + ".weight")) {
      product.a = at::cat({product.a, part->a}, 0);
      product.b = at::cat({product.b, -part->b}, 1);
    }
    if (config.type == AdapterType::dora)
      product.magnitudes = magnitudes_of(weights, prefix, b.size(0));
    else if (weights.find(format("{}{}", prefix, kMagnitudeSuffix)) != nullptr)
      throw FormatError(format("the adapter is one of LoRA, but has {}{}", prefix, kMagnitudeSuffix));
    products_[module + ".weight"].push_back(std::move(product));
  }
  if (empty()) throw FormatError("the adapter has no tensors");
}

std::vector<std::string> AdapterDeltas::names() const {
  std::vector<std::string> names;
  for (const auto& [name, products] : products_) names.push_back(name);
  for (const auto& [name, values] : replacements_) names.push_back(name);
  return names;
}

bool AdapterDeltas::changes(const std::string& tensor) const {
  return products_.contains(tensor) || replacements_.contains(tensor);
}

bool AdapterDeltas::unties(const ModelSpec& model) const {
  return std::ranges::any_of(model.ties, [&](const TieSpec& tie) {
    const std::string& original = model.find_parameter(tie.parameter)->sub_tensors.front().hf_name;
    return products_.contains(original) || changes(tie.hf_alias);
  });
}

void AdapterDeltas::require_fit(const ModelSpec& model) const {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const NamedTensor& tensor : named_tensors(model)) shapes[tensor.name] = tensor.shape;
  for (const TieSpec& tie : model.ties)
    shapes[tie.hf_alias] = model.find_parameter(tie.parameter)->tensor_shape(0);
  const auto require = [&](const std::string& name, const std::vector<int64_t>& shape) {
    const auto found = shapes.find(name);
    if (found == shapes.end())
      throw UsageError(
          format("the adapter changes {}, which the model does not have: it belongs to another model", name));
    if (found->second != shape)
      throw UsageError(
          format("the adapter's {} is {}, but that of the model is {}: it belongs to another model", name,
                 shape_text(shape), shape_text(found->second)));
  };
  for (const auto& [name, products] : products_)
    for (const Product& product : products) require(name, {product.b.size(0), product.a.size(1)});
  for (const auto& [name, values] : replacements_) require(name, values.sizes().vec());
}

void AdapterDeltas::add_to(const std::string& tensor, int64_t begin, const at::Tensor& values) const {
  const at::NoGradGuard no_grad;
  if (const auto found = replacements_.find(tensor); found != replacements_.end())
    values.copy_(found->second.view({-1}).narrow(0, begin, values.numel()));
  const auto found = products_.find(tensor);
  if (found == products_.end()) return;
  const int64_t end = begin + values.numel();
  const at::Tensor before = values.clone();
  for (const Product& product : found->second) {
    const int64_t columns = product.a.size(1);
    const int64_t first = begin / columns;
    const int64_t rows = (end + columns - 1) / columns - first;
    at::Tensor added = at::mm(product.b.narrow(0, first, rows), product.a);
    if (product.magnitudes.defined()) {
      if (begin != first * columns || values.numel() != rows * columns)
        throw Error(format("{}: {} elements from {} on are no whole rows", tensor, values.numel(), begin));
      const at::Tensor base = before.view({rows, columns});
      added.add_(base);
      const at::Tensor norms =
          at::linalg_vector_norm(added, 2, at::IntArrayRef{1}, /*keepdim=*/true).clamp_min_(kSmallestNorm);
      added.mul_(product.magnitudes.narrow(0, first, rows).unsqueeze(1) / norms).sub_(base);
    }
    values.add_(added.view({-1}).narrow(0, begin - first * columns, values.numel()), product.weight);
  }
}

void AdapterDeltas::merge_into(ModelStore& store) const {
  const at::NoGradGuard no_grad;
  for (const NamedTensor& tensor : named_tensors(store)) {
    if (!changes(tensor.name)) continue;
    const UnitStore& unit = store.unit(tensor.unit);
    for (const auto& [slice, local] : shard_slices(unit, tensor)) {
      if (slice.elements() != tensor.elements) throw Error(format("{} is divided over ranks", tensor.name));
      const int64_t most = chunk_of_rows(tensor.shape);
      for (int64_t begin = 0; begin < tensor.elements; begin += most) {
        at::Tensor stored = unit.master().narrow(0, local + begin, std::min(most, tensor.elements - begin));
        const at::Tensor values = at::empty({stored.numel()}, at::device(at::kCPU).dtype(at::kFloat));
        values.copy_(stored);
        add_to(tensor.name, begin, values);
        stored.copy_(values);
      }
    }
  }
}

void untie(ModelConfig& config, const ModelSpec& model, TensorFolder& weights) {
  config.tie_embeddings = false;
  for (const TieSpec& tie : model.ties)
    weights.add_name(model.find_parameter(tie.parameter)->sub_tensors.front().hf_name, tie.hf_alias);
}

void name_shared_factors(const ModelSpec& model, TensorFolder& weights) {
  for (const CopySpec& copy : model.copies)
    if (is_adapter_tensor(copy.hf_name) && weights.find(copy.original) != nullptr)
      weights.add_name(copy.original, copy.hf_name);
}

namespace {

/// The tensor of the base whose copy this is: a tied head is the embedding.
std::string copied_tensor(const std::string& name, const ModelSpec& model) {
  const std::string original = format("{}.weight", adapted_module(name));
  const auto tie = std::ranges::find(model.ties, original, &TieSpec::hf_alias);
  return tie == model.ties.end() ? original
                                 : model.find_parameter(tie->parameter)->sub_tensors.front().hf_name;
}

bool is_copy(const TensorFolder& folder, const std::string& name, const TensorFolder& base,
             const std::string& original) {
  if (base.find(original) == nullptr) return false;
  WeightReader copy(folder, name);
  WeightReader values(base, original);
  if (copy.shape() != values.shape()) return false;
  const TensorSlice whole = whole_slice(copy.shape());
  const auto options = at::device(at::kCPU).dtype(scalar_type(folder.find(name)->dtype));
  for (int64_t begin = 0; begin < whole.elements(); begin += kWeightChunk) {
    const at::Tensor left = at::empty({std::min(kWeightChunk, whole.elements() - begin)}, options);
    const at::Tensor right = at::empty_like(left);
    copy.read(whole, begin, left);
    values.read(whole, begin, right);
    if (!at::equal(left, right)) return false;
  }
  return true;
}

}  // namespace

bool has_base_copies(const AdapterFiles& adapter) {
  const std::vector<std::string> names = adapter.weights.names();
  return std::ranges::any_of(names, [](const std::string& name) { return name.ends_with(kBaseCopySuffix); });
}

void require_base_copies(const AdapterFiles& adapter, const ModelSpec& model, const TensorFolder& base) {
  const at::NoGradGuard no_grad;
  for (const std::string& name : adapter.weights.names()) {
    if (!name.ends_with(kBaseCopySuffix)) continue;
    const std::string original = copied_tensor(name, model);
    if (is_copy(adapter.weights, name, base, original)) continue;
    throw UsageError(
        format("the adapter has a copy of the weights beside it, {}, which differs from {} of the model: it "
               "belongs to another model, or to one with more tokens; start from that model, or merge the "
               "adapter into it (stepforge export MODEL NEW_FOLDER --adapter FOLDER --merge)",
               name, original));
  }
}

void require_biases(const AdapterFiles& adapter, const ModelSpec& model) {
  const TrainedBiases biases(adapter.config.bias, adapter.weights.names());
  for (const NamedTensor& tensor : named_tensors(model)) {
    if (!biases.contains(tensor.name) || adapter.weights.find(tensor.name) != nullptr) continue;
    throw UsageError(format(
        "the adapter was trained with bias = \"{}\", but has no {}: PEFT saves those of lora_only since "
        "0.21; save it again, or write \"bias\": \"none\" into its {} to use it with the model's",
        choice_name(adapter.config.bias), tensor.name, kPeftConfigFile));
  }
}

AdapterDeltas read_adapters(const std::vector<std::string>& arguments, const ModelSpec& model,
                            AdapterBias own) {
  AdapterDeltas deltas;
  for (const std::string& argument : arguments) {
    fs::path folder = argument;
    double weight = 1.0;
    if (const size_t sign = argument.rfind('='); sign != std::string::npos && !fs::exists(folder)) {
      const std::string text = argument.substr(sign + 1);
      const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), weight);
      if (fault != std::errc() || end != text.data() + text.size())
        throw UsageError(
            format("--adapter {}: {} is no number; write FOLDER or FOLDER=WEIGHT", argument, text));
      folder = argument.substr(0, sign);
    }
    const AdapterFiles adapter = open_peft_folder(folder);
    if (own != AdapterBias::none && adapter.config.bias != AdapterBias::none)
      throw UsageError(
          format("--adapter {}: it replaces biases of the model (bias = \"{}\"), and so does the model's own "
                 "adapter; use one of them",
                 argument, choice_name(adapter.config.bias)));
    require_biases(adapter, model);
    deltas.add(adapter.config, adapter.weights, weight);
  }
  deltas.require_fit(model);
  return deltas;
}

namespace {

/// A tensor of a folder of PEFT, and that of the model which it is.
struct SavedTensor {
  std::string name;
  NamedTensor source;
};

/// All that is trained, and what experts share under the name of each.
std::vector<SavedTensor> saved_tensors(const ModelSpec& model, const TrainedBiases& biases) {
  std::multimap<std::string_view, std::string_view> copies;
  for (const CopySpec& copy : model.copies)
    if (is_adapter_tensor(copy.hf_name)) copies.emplace(copy.original, copy.hf_name);
  std::vector<SavedTensor> saved;
  for (const NamedTensor& tensor : named_tensors(model)) {
    if (!model.units.at(tensor.unit).trainable) continue;
    saved.push_back({saved_name(tensor.name, biases), tensor});
    const auto [begin, end] = copies.equal_range(tensor.name);
    for (auto copy = begin; copy != end; ++copy) saved.push_back({std::string(copy->second), tensor});
  }
  return saved;
}

}  // namespace

void export_adapter(const fs::path& folder, const AdapterConfig& config, const ModelSpec& model,
                    const TensorFolder& weights, const std::string& base, const Tokenizer* tokenizer,
                    DType dtype, const InitialAdapter* taken) {
  const at::NoGradGuard no_grad;
  if (taken != nullptr && dtype != DType::f32)
    throw UsageError(format(
        "--dtype {}: an adapter of adapter.init = \"pissa\" is the difference of two large products, of which "
        "rounded factors leave little; export it as fp32, or the model with --merge",
        dtype_name(dtype)));
  if (fs::exists(fs::symlink_status(folder)))
    throw UsageError(
        format("{} exists already and is not overwritten; choose a different folder", folder.string()));
  const std::vector<SavedTensor> tensors = saved_tensors(model, TrainedBiases(config.bias, model));
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) {
    specs.push_back({name, dtype, tensor.shape});
    if (tensor.name.ends_with(kEmbeddingSuffixA)) std::ranges::reverse(specs.back().shape);
    if (taken == nullptr || !is_adapter_factor(tensor.name)) continue;
    specs.back().shape.at(tensor.name.ends_with(kSuffixA) ? 0 : 1) *= 2;
  }
  StagedFolder staged(folder);
  SafetensorsWriter writer(staged.staging() / kPeftWeightsFile, specs, {{"format", "pt"}});
  for (const auto& [name, tensor] : tensors) {
    at::Tensor values = read_whole(weights, tensor.name);
    if (taken != nullptr && is_adapter_factor(tensor.name))
      values = beside_whole(tensor.name, values, *taken);
    values = values.to(scalar_type(dtype));
    if (tensor.name.ends_with(kEmbeddingSuffixA)) values = values.t().contiguous();
    writer.write(name, {static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
  }
  writer.finish();
  write_file_atomic(
      staged.staging() / kPeftConfigFile,
      peft_config(taken == nullptr ? config : with_doubled_ranks(config), model, base).dump(2) + "\n");
  if (tokenizer != nullptr) tokenizer->save_pretrained(staged.staging());
  staged.publish();
}

}  // namespace stepforge
