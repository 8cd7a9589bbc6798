// SPDX-License-Identifier: Apache-2.0
// Tensors of Hugging Face files in tests: written, read and compared as bytes.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/checkpoint/hf_folder.h"
#include "stepforge/tensorfile/safetensors.h"
#include "tests/checkpoint/fixture.h"

namespace stepforge::testing {

/// A tensor of a test file.
struct FileTensor {
  TensorSpec spec;
  std::string bytes;
};

inline void write_tensors(const std::filesystem::path& path, const std::vector<FileTensor>& tensors) {
  std::vector<TensorSpec> specs;
  for (const FileTensor& tensor : tensors) specs.push_back(tensor.spec);
  SafetensorsWriter writer(path, specs);
  for (const FileTensor& tensor : tensors) {
    if (!tensor.bytes.empty()) writer.write(tensor.spec.name, std::as_bytes(std::span(tensor.bytes)));
  }
  writer.finish();
}

inline std::vector<FileTensor> tensors_of(const std::filesystem::path& folder) {
  const TensorFolder files = open_hf_weights(folder);
  std::vector<FileTensor> tensors;
  for (const std::string& name : files.names()) {
    const StoredTensor& stored = *files.find(name);
    FileTensor tensor = {{name, stored.dtype, stored.shape}, ""};
    tensor.bytes.resize(static_cast<size_t>(tensor.spec.bytes()));
    files.read(name, whole_slice(stored.shape), std::as_writable_bytes(std::span(tensor.bytes)));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

/// Saves a checkpoint of the model and exports it.
inline void export_model(const std::filesystem::path& out, const SmallModel& model,
                         const Tokenizer* tokenizer = nullptr, const HfExportOptions& options = {}) {
  const TempFolder folder;
  write_checkpoint(folder.path(), 1, model.stage());
  const FoundCheckpoint found = verify_checkpoint(folder / "step-1");
  export_hf(out, model.config, model.spec, checkpoint_tensors(found), tokenizer, options);
}

inline FileTensor& tensor_named(std::vector<FileTensor>& tensors, const std::string& name) {
  return *std::find_if(tensors.begin(), tensors.end(),
                       [&](const FileTensor& tensor) { return tensor.spec.name == name; });
}

/// The model's tensors in `dtype`, with random bits: all kinds of finite values, including subnormals.
inline std::vector<FileTensor> original_tensors(const ModelSpec& model, DType weights) {
  std::vector<FileTensor> tensors;
  uint64_t key = 1;
  for (const NamedTensor& tensor : named_tensors(model)) {
    // State of blocks is fp32 whatever the weights are.
    const DType dtype = model.units.at(tensor.unit).state ? DType::f32 : weights;
    FileTensor file = {{tensor.name, dtype, tensor.shape}, ""};
    for (int64_t i = 0; i < tensor.elements; ++i) {
      auto word = static_cast<uint32_t>(mix_bits(key++));
      // An exponent of all ones would be infinity or NaN.
      if (dtype == DType::f16 && (word & 0x7C00) == 0x7C00) word ^= 0x0400;
      if (dtype == DType::bf16 && (word & 0x7F80) == 0x7F80) word ^= 0x0080;
      if (dtype == DType::f32 && (word & 0x7F800000) == 0x7F800000) word ^= 0x00800000;
      file.bytes.append(reinterpret_cast<const char*>(&word), static_cast<size_t>(dtype_bytes(dtype)));
    }
    tensors.push_back(std::move(file));
  }
  return tensors;
}

inline void expect_equal(const std::vector<FileTensor>& left, std::vector<FileTensor> right) {
  ASSERT_EQ(left.size(), right.size());
  for (const FileTensor& tensor : left) {
    const FileTensor& other = tensor_named(right, tensor.spec.name);
    EXPECT_EQ(tensor.spec.dtype, other.spec.dtype);
    EXPECT_EQ(tensor.spec.shape, other.spec.shape);
    EXPECT_TRUE(tensor.bytes == other.bytes) << tensor.spec.name;
  }
}

}  // namespace stepforge::testing
