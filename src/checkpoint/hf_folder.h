// Hugging Face model folders in and out, tensor by tensor, exactly.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/dtype.h"
#include "config/config.h"
#include "parallel/unit_store.h"
#include "spec/model_spec.h"
#include "tensorfile/hf_index.h"
#include "text/tokenizer.h"

namespace stepforge {

/// The model section that folder/config.json describes. Throws Error if it cannot be read, FormatError naming
/// the key that is wrong or not supported.
ModelConfig hf_model_config(const std::filesystem::path& folder);

/// Loads the fp32 masters from a folder with model.safetensors, or shards and their index. F32, BF16 and F16
/// become fp32 exactly. A second copy of a tied tensor must equal the first bit for bit;
/// "rotary_emb.inv_freq" buffers of older exports are passed over. Throws Error listing every tensor that is
/// missing, unexpected, in two files, or of another shape or type, and changes nothing then.
void import_hf(const std::filesystem::path& folder, const ModelSpec& model, ModelStore& store);

struct HfExportOptions {
  DType dtype = DType::f32;  ///< f32, bf16 or f16, rounded to nearest even
  int64_t max_shard_bytes = kDefaultShardBytes;
};

/// Writes what transformers loads: config.json, generation_config.json, the weights as one file or as shards
/// with an index, and the tokenizer's files unless `tokenizer` is null. The folder appears when it is
/// complete. Throws UsageError if `folder` exists or the dtype is none of the three, Error if writing fails
/// or a value is beyond fp16's range.
void export_hf(const std::filesystem::path& folder, const ModelConfig& config, const ModelSpec& model,
               const ModelStore& store, const Tokenizer* tokenizer, const HfExportOptions& options = {});

}  // namespace stepforge
