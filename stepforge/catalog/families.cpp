// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/families.h"

#include <array>
#include <string>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

constexpr std::array<ModelFamily, 2> kFamilies = {{
    // Llama 2, 3, 3.1, 3.2, 3.3 (Touvron et al. 2023; Grattafiori et al. 2024).
    {.name = "llama",
     .hf_model_type = "llama",
     .hf_architecture = "LlamaForCausalLM",
     .qk_norm = false,
     .hf_head_dim = 0,
     .hf_kv_heads = 0,
     .hf_max_position = 2048},
    // Qwen3 dense (Yang et al. 2025).
    {.name = "qwen3",
     .hf_model_type = "qwen3",
     .hf_architecture = "Qwen3ForCausalLM",
     .qk_norm = true,
     .hf_head_dim = 128,
     .hf_kv_heads = 32,
     .hf_max_position = 32768},
}};

}  // namespace

std::span<const ModelFamily> model_families() {
  return kFamilies;
}

const ModelFamily& find_family(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& family : kFamilies) {
    if (family.name == name) return family;
    names.emplace_back(family.name);
  }
  throw UsageError(
      format("model.family = \"{}\": unknown family; expected one of {}", name, join(names, ", ")));
}

}  // namespace stepforge
