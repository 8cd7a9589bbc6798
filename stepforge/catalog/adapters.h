// SPDX-License-Identifier: Apache-2.0
// Low-rank adapters as a pass over a model: beside the product of a frozen matrix W there are linear(x; A) and low_rank(h, y; B),
// and with DoRA magnitude(y; m, W, A, B). Beside the products of experts these are expert_in(x; A) and low_rank(h, y, experts; B),
// or expert_rows(h; A) and expert_out(h; B); one A of all experts is linear(x; A), and take_rows() brings what it makes to their
// rows; with DoRA expert_rows() takes the place of expert_out(), and sum_rows() sums what magnitude() has scaled. Beside the lookup of an embedding there are lookup(; A) and low_rank(h, y; B), and the
// loss of the head takes linear(x; A) and B. A, B and m are ordinary parameters in trained units; everything else (sharding, tensor
// and expert parallelism, optimizers, checkpoints, memory) follows from the specification.
#pragma once

#include <string_view>

#include "stepforge/base/weight_code.h"
#include "stepforge/config/config.h"
#include "stepforge/modelspec/model_spec.h"

namespace stepforge {

/// The names of the tensors of adapters begin with this, as in PEFT's files:
/// "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight".
inline constexpr std::string_view kAdapterPrefix = "base_model.model.";

/// The ends of the names of A and B of a matrix there, and of those of an embedding. The latter A is [rank, vocabulary] there;
/// everywhere else it is stored as its transpose, a table like that of the embedding.
inline constexpr std::string_view kSuffixA = ".lora_A.weight";
inline constexpr std::string_view kSuffixB = ".lora_B.weight";
inline constexpr std::string_view kEmbeddingSuffixA = ".lora_embedding_A";
inline constexpr std::string_view kEmbeddingSuffixB = ".lora_embedding_B";

/// The end of the name of a magnitude of DoRA there, and of the copy of W that PEFT saves beside an adapter of embedding or head.
inline constexpr std::string_view kMagnitudeSuffix = ".lora_magnitude_vector";
inline constexpr std::string_view kBaseCopySuffix = ".base_layer.weight";
/// That of the trained bias of a module with an adapter; of other modules it is ".bias", as in the model.
inline constexpr std::string_view kBaseBiasSuffix = ".base_layer.bias";

inline bool is_adapter_tensor(std::string_view name) {
  return name.starts_with(kAdapterPrefix);
}

/// Which of the ends above the name of a tensor has; empty if none.
inline std::string_view adapter_suffix(std::string_view name) {
  for (const std::string_view end :
       {kSuffixA, kSuffixB, kEmbeddingSuffixA, kEmbeddingSuffixB, kMagnitudeSuffix, kBaseCopySuffix})
    if (is_adapter_tensor(name) && name.ends_with(end)) return end;
  return {};
}

/// Whether the tensor is an A or a B.
inline bool is_adapter_factor(std::string_view name) {
  const std::string_view end = adapter_suffix(name);
  return !end.empty() && end != kMagnitudeSuffix && end != kBaseCopySuffix;
}

/// "model.layers.0.self_attn.q_proj" of "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", the name of a tensor that
/// has one of the ends above.
inline std::string_view adapted_module(std::string_view tensor) {
  tensor.remove_suffix(adapter_suffix(tensor).size());
  return tensor.substr(kAdapterPrefix.size());
}

/// Adds the adapters that `adapter` describes to a model or a rank's part of it, and freezes all other weights, which are stored as
/// `frozen`, but those of also_train, the biases that adapter.bias means and the score of a reward model. Of a packed matrix, each
/// tensor has an adapter of its own, and so has each expert. Embedding and head have one if a target names them, each its own if they
/// are tied. With tensor parallelism A is divided like the columns of W and B like its rows, or A like the rows of an embedding; the
/// other one is whole, and its gradient summed by the block. With expert parallelism both are where the expert is; an A that experts
/// share is in a unit of its own then, "layers.0.experts.shared", and the step sums its gradient over all ranks. Does nothing
/// without adapters. Throws UsageError if a name matches nothing that can have an adapter, or something that cannot have the one
/// described, or if adapter.bias trains nothing.
void add_adapters(ModelSpec& model, const AdapterConfig& adapter, const WeightStorage& frozen);

}  // namespace stepforge
