// SPDX-License-Identifier: Apache-2.0
// Parameters and calls of a mixture of experts, which takes the place of an MLP.
//
// With expert parallelism a rank has an equal part of the experts of each layer. The rows of its tokens pass to the ranks
// that have their experts, and the results back, between blocks (expert_blocks.h). How many rows come depends on the choice;
// costs are those of equal loads: as many as a rank sends.
//
// Each token has k rows, one for each expert that it takes, whichever these are: so the bytes of a micro-batch do not depend
// on the choice, and what is expected is also the bound. With hidden size F, width D and E experts, saved per token:
//
//   compute dtype: the result of the norm (D), gate and up of its rows (2 F k)
//   4 bytes each:  rstd (1), logits (E), and of each slot its expert, its weight, its row, and of each row its slot (4 k)
//   shared expert of hidden size S: 3 S, and if it is gated its result and gate: D and 4 bytes
#pragma once

#include <cstdint>
#include <string>

#include "stepforge/catalog/layers.h"
#include "stepforge/modelspec/expert_parallel.h"
#include "stepforge/modelspec/router_options.h"

namespace stepforge {

struct ExpertDims {
  int64_t width = 0;
  int64_t hidden = 0;  ///< of each expert
  int64_t experts = 0;
  int64_t chosen = 0;         ///< experts per token
  int64_t shared_hidden = 0;  ///< 0: no shared expert
  bool shared_gate = false;
  bool biased = false;  ///< experts and router have biases (biased_experts.h)
};

/// The names of a family's tensors in Hugging Face files, after "model.layers.3."; those of an expert after
/// experts + "7.", or after `experts` if those of all experts are one tensor.
struct ExpertNames {
  std::string router;
  std::string experts;
  std::string gate;
  std::string up = {};  ///< empty if gate and up are one tensor
  std::string down;
  std::string shared = {};  ///< before "gate_proj.weight", "up_proj.weight", "down_proj.weight"
  std::string shared_gate = {};
  std::string correction = {};  ///< of the router
  std::string router_bias = {};
};

/// Qwen2-MoE and Qwen3-MoE, of which the first has a gated shared expert; Mixtral; DeepSeek-V2 and V3; gpt-oss.
ExpertNames qwen_expert_names();
ExpertNames mixtral_expert_names();
ExpertNames deepseek_expert_names();
ExpertNames gpt_oss_expert_names();

/// norm, router, expert_gate_up [experts * 2 hidden, width] and expert_down [experts * width, hidden], each expert's
/// matrices sub-tensors of their own), shared expert, residual add. `prefix` is "layers.3.mlp", `hf_prefix`
/// "model.layers.3."; `depth_std` initialises what ends in the residual. The region is "mlp". With sequence parallelism it is of
/// slices of the tokens. Throws Error if the family has no names for what `dims` has.
LayerSpec expert_layer(const std::string& prefix, const std::string& hf_prefix, const ExpertDims& dims,
                       const ExpertNames& names, double depth_std, bool dropout, const LayerTraits& traits,
                       const RouterSettings& router, const TensorParallel& tensor = {});

/// The parts of which it consists, each with its own parameters: norm and router ("router"), experts ("mlp"), shared expert
/// ("mlp"; empty if there is none), and the sum of their results and the residual ("join").
struct ExpertParts {
  LayerSpec router;
  LayerSpec experts;
  LayerSpec shared;
  LayerSpec join;
};

/// If the experts are spread over ranks, each part is that of a block of its own (modelspec/expert_values.h).
/// Of the experts the parameters list all, those of other ranks as empty slices, so that every rank knows the names, or have
/// this rank's as a slice of a tensor of all; if experts are divided, their hidden units are those of this rank.
ExpertParts expert_parts(const std::string& prefix, const std::string& hf_prefix, const ExpertDims& dims,
                         const ExpertNames& names, double depth_std, bool dropout, const LayerTraits& traits,
                         const RouterSettings& router, const ExpertParallel& parallel,
                         const TensorParallel& tensor = {});

/// The correction of the router, [experts] fp32, which no gradient changes: state beside the parameters.
ParameterSpec router_correction(const std::string& prefix, const std::string& hf_prefix, int64_t experts,
                                const ExpertNames& names);

}  // namespace stepforge
