// SPDX-License-Identifier: Apache-2.0
// Adapters in files: PEFT's folders (adapter_config.json, adapter_model.safetensors), and merging them into weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/checkpoint/initial_adapter.h"
#include "stepforge/config/config.h"
#include "stepforge/modelspec/model_spec.h"
#include "stepforge/storage/unit_store.h"
#include "stepforge/tensorfile/tensor_folder.h"
#include "stepforge/text/tokenizer.h"

namespace stepforge {

/// An adapter on disk.
struct AdapterFiles {
  AdapterConfig config;
  TensorFolder weights;  ///< its tensors have the names of catalog/adapters.h; there may be others
};

/// A folder of PEFT. Tensors of modules_to_save and trained biases get the names that they have in the model. Throws UsageError if it is none,
/// FormatError if it holds what read_peft_config() refuses, or tensors of another kind of adapter.
AdapterFiles open_peft_folder(const std::filesystem::path& folder);

/// What adapters add to the weights W of a model, and the tensors that they replace. An adapter adds its weight * (V - W), where
/// V = W + scale * B A, or W + scale * (B A)^T of an embedding; with magnitudes m of DoRA, the rows of V are scaled to these norms.
class AdapterDeltas {
 public:
  /// Throws FormatError if the tensors of a module do not fit together, or one of them is missing.
  /// `replaces`: whether tensors that are none of an adapter replace those of the model. `taken`: what the adapter took from W when
  /// it started, or null; it then adds the difference.
  void add(const AdapterConfig& config, const TensorFolder& weights, double weight, bool replaces = true,
           const InitialAdapter* taken = nullptr);

  bool empty() const { return products_.empty() && replacements_.empty(); }
  /// The names of the tensors of a model that change.
  std::vector<std::string> names() const;
  bool changes(const std::string& tensor) const;
  /// Whether it adds to an embedding or to the head that the model ties to it: each has an adapter of its own, so that the merged
  /// model has two tensors (untie()).
  bool unties(const ModelSpec& model) const;
  /// Throws UsageError naming a tensor that the model does not have, or has with another shape.
  void require_fit(const ModelSpec& model) const;
  /// Adds to `values`, fp32, elements [begin, begin + size) of the tensor in row-major order; whole rows of tensors with
  /// magnitudes.
  void add_to(const std::string& tensor, int64_t begin, const at::Tensor& values) const;
  /// Merges into the masters of a store that is whole on this rank.
  void merge_into(ModelStore& store) const;

 private:
  struct Product {
    at::Tensor a;           ///< [rank, columns] fp32
    at::Tensor b;           ///< [rows, rank] fp32, scaled
    at::Tensor magnitudes;  ///< [rows] fp32; undefined if it has none
    double weight = 1.0;
  };
  std::map<std::string, std::vector<Product>, std::less<>> products_;
  std::map<std::string, at::Tensor, std::less<>> replacements_;  ///< fp32
};

/// Makes an untied model of a tied one: the head has the values of the embedding under its own name. `model` is that of `config`.
void untie(ModelConfig& config, const ModelSpec& model, TensorFolder& weights);

/// Gives what several experts share (ModelSpec::copies) the names of all of them, as files of PEFT have it, in the tensors of a
/// checkpoint of `model`.
void name_shared_factors(const ModelSpec& model, TensorFolder& weights);

/// The adapters that a command line names: "FOLDER" or "FOLDER=0.5", a folder of PEFT with its weight. `own`: the biases that
/// an adapter of the model itself replaces. Throws as the functions above, and UsageError if several adapters replace biases.
AdapterDeltas read_adapters(const std::vector<std::string>& arguments, const ModelSpec& model,
                            AdapterBias own = AdapterBias::none);

/// Throws UsageError naming a bias of `model` that was trained with the adapter, but that it does not have.
void require_biases(const AdapterFiles& adapter, const ModelSpec& model);

/// Whether an adapter has copies of W (kBaseCopySuffix).
bool has_base_copies(const AdapterFiles& adapter);
/// Throws UsageError if they, which a run does not read, differ from those of the
/// model that it belongs to, by more than the rounding to the type of the copy.
void require_base_copies(const AdapterFiles& adapter, const ModelSpec& model, const TensorFolder& base);

/// Writes the adapter of a run as a folder of PEFT, in fp32 or `dtype`. `model` has the adapters of `config`, `weights` the
/// tensors of a checkpoint; `base`: the model that they belong to; `taken`: what the adapter took from it, or null. With that the
/// folder has adapters [A; A0] and [B, -B0] of twice the rank, as PEFT converts them, which belong to the whole weights. The folder
/// appears when it is complete. Throws UsageError if it exists, or if such a difference would be rounded.
void export_adapter(const std::filesystem::path& folder, const AdapterConfig& config, const ModelSpec& model,
                    const TensorFolder& weights, const std::string& base, const Tokenizer* tokenizer,
                    DType dtype = DType::f32, const InitialAdapter* taken = nullptr);

}  // namespace stepforge
