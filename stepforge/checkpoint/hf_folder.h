// SPDX-License-Identifier: Apache-2.0
// Imports and exports Hugging Face model folders, bit by bit, one tensor at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "stepforge/base/dtype.h"
#include "stepforge/base/json.h"
#include "stepforge/checkpoint/adapter_folder.h"
#include "stepforge/checkpoint/tensor_comparison.h"
#include "stepforge/config/config.h"
#include "stepforge/modelspec/model_spec.h"
#include "stepforge/storage/unit_store.h"
#include "stepforge/tensorfile/hf_index.h"
#include "stepforge/tensorfile/tensor_folder.h"
#include "stepforge/text/tokenizer.h"

namespace stepforge {

enum class ImportedTensors : uint8_t {
  all,
  base,     ///< without those of adapters (catalog/adapters.h)
  factors,  ///< A and B of adapters
  trained   ///< those of trained units: adapters, and what is trained with them
};

struct HfImportOptions {
  /// The number of rows of the stored embedding and head if it is less than the model's; 0: the same. New rows become the
  /// mean of the stored ones; transformers draws them around this mean.
  int64_t stored_vocabulary = 0;
  /// Null: any difference is an error. Otherwise differences are stored here, and what fits is loaded: whole tensors, and the
  /// common rows of matrices that differ in the number of rows. The rest keeps its values.
  TensorDifferences* accepted = nullptr;
  /// The tensors of the model that the folder must have; the others keep their values.
  ImportedTensors tensors = ImportedTensors::all;
  /// The weights are those of a model with a vocabulary, or of an adapter of one, and the model is a reward model: its score
  /// keeps its values, and the head of the vocabulary is not read.
  bool new_score = false;
  /// What an adapter of the model took from the weights, which masters are then loaded without; null: nothing.
  const InitialAdapter* taken = nullptr;
};

/// Loads what `store` holds, this rank's part of the fp32 masters, from tensors with Hugging Face names, whole
/// or sharded over ranks. F32, BF16, F16 and MXFP4 (mxfp4.h) become fp32 exactly; experts may be stacked
/// (catalog/stacked_experts.h). A second copy of a tied tensor, or of embedding and head for multi-token prediction, must equal
/// the first bit for bit; "rotary_emb.inv_freq" buffers of older exports, optimizer state and left_out() are ignored. `model`
/// is the whole model (this rank's parts of its tensors do as well), with which the weights are compared, also
/// in what other ranks hold. Throws Error listing every tensor that is missing, unexpected, or of a different
/// shape or type, the same on all ranks, and then changes nothing.
void import_weights(const TensorFolder& weights, const ModelSpec& model, ModelStore& store,
                    const HfImportOptions& options = {});

/// Whether the weights have a score (catalog/layers.h).
bool has_score(const TensorFolder& weights);

/// Whether there are tensors of adapters among them.
bool has_adapters(const TensorFolder& weights);

/// The same from a folder with model.safetensors, or shards and their index.
void import_hf(const std::filesystem::path& folder, const ModelSpec& model, ModelStore& store);

/// What import_weights() leaves out, for a warning; "" if nothing: layers after the last one (ModelFamily::further_layers).
std::string left_out(const TensorFolder& weights, const ModelSpec& model);

struct HfExportOptions {
  DType dtype = DType::f32;  ///< f32, bf16 or f16, rounded to nearest even
  int64_t max_shard_bytes = kDefaultShardBytes;
  Json generation = {};  ///< read_generation_config(); ids that it lacks come from the tokenizer
  /// The experts of a layer in two tensors instead of several for each expert (catalog/stacked_experts.h).
  bool stacked_experts = false;
  const AdapterDeltas* adapters =
      nullptr;  ///< to be merged into the weights; tensors of adapters are then left out
};

/// What rounding to the type of an export did to the merged weights: the root mean square of the errors, relative to that of what
/// the adapters add. 0 without adapters.
struct MergeError {
  double relative = 0.0;
};

/// Writes a folder for transformers: config.json, generation_config.json, the weights as one file or as
/// shards with an index, and the tokenizer's files unless `tokenizer` is null. `weights` holds the tensors
/// under their Hugging Face names as F32, BF16 or F16, whole or sharded over ranks: a checkpoint or another
/// model folder; optimizer state in it is ignored. Tensors are streamed, so a few MiB of memory are enough
/// for any model. The folder appears when it is complete. Throws UsageError if `folder` exists, the dtype
/// is not f32, bf16 or f16 or the model has no experts to stack, Error if the weights do not fit the model,
/// writing fails or a value is beyond fp16's range.
MergeError export_hf(const std::filesystem::path& folder, const ModelConfig& config, const ModelSpec& model,
                     const TensorFolder& weights, const Tokenizer* tokenizer,
                     const HfExportOptions& options = {});

}  // namespace stepforge
