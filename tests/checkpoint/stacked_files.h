// SPDX-License-Identifier: Apache-2.0
// Hugging Face files whose experts are stacked, made of files in which each has tensors of its own.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/checkpoint/hf_files.h"

namespace stepforge::testing {

/// The families whose files may be so.
inline std::vector<std::string> stackable_families() {
  return {"qwen2_moe", "qwen3_moe", "mixtral", "deepseek_v2", "deepseek_v3"};
}

/// As transformers 5 writes them with save_original_format=False.
inline std::string stacked_name(const std::string& name) {
  static const std::map<std::string, std::string> kStacks = {
      {"gate_proj.weight", "gate_up_proj"}, {"up_proj.weight", "gate_up_proj"},
      {"down_proj.weight", "down_proj"},    {"w1.weight", "gate_up_proj"},
      {"w3.weight", "gate_up_proj"},        {"w2.weight", "down_proj"}};
  const size_t block = name.find(".block_sparse_moe.");
  const size_t experts = name.find(".experts.");
  if (block == std::string::npos && experts == std::string::npos) return name;
  const std::string layer = name.substr(0, name.find('.', std::string("model.layers.").size()));
  if (experts == std::string::npos) return layer + ".mlp.gate.weight";
  const std::string matrix = name.substr(name.find('.', experts + std::string(".experts.").size()) + 1);
  return layer + ".mlp.experts." + kStacks.at(matrix);
}

/// The same weights: of each expert gate and up, or down, one expert after another. Those of each stacked tensor are in this
/// order in `tensors`.
inline std::vector<FileTensor> stack_experts(const std::vector<FileTensor>& tensors, int64_t experts = 6) {
  std::vector<FileTensor> stacked;
  for (const FileTensor& tensor : tensors) {
    const auto& [spec, bytes] = tensor;
    const std::string name = stacked_name(spec.name);
    const auto begun =
        std::ranges::find(stacked, name, [](const FileTensor& other) { return other.spec.name; });
    if (!name.ends_with("_proj")) {
      stacked.push_back({{name, spec.dtype, spec.shape}, bytes});
    } else if (begun == stacked.end()) {
      stacked.push_back({{name, spec.dtype, {experts, spec.shape[0], spec.shape[1]}}, bytes});
    } else {
      begun->bytes += bytes;
    }
  }
  for (FileTensor& tensor : stacked)
    if (tensor.spec.name.ends_with("gate_up_proj")) tensor.spec.shape[1] *= 2;
  return stacked;
}

}  // namespace stepforge::testing
