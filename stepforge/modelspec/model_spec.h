// SPDX-License-Identifier: Apache-2.0
// A model as data: its units and blocks. Tensors, checkpoint names, import and export of weights, plans and
// FLOP counts follow from it. catalog/decoder_spec.h builds it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/choices.h"
#include "stepforge/base/dtype.h"
#include "stepforge/modelspec/call_list.h"
#include "stepforge/modelspec/cost.h"
#include "stepforge/modelspec/parameter.h"
#include "stepforge/modelspec/rope_spec.h"

namespace stepforge {

/// A tensor that a block passes on: [tokens, width] in the compute dtype. An input is what the last block before with an
/// output of its name made. So blocks form a graph, and a chain is a name that each block takes and makes again.
struct BundleEntry {
  std::string name;  ///< "hidden"
  int64_t width = 0;
  bool slice = false;  ///< of this rank's slice of the tokens only (sequence parallelism)
  /// Of rows that ranks dispatch to the experts of this one: how many are expected per token, or per token of a slice. 0:
  /// each token has one.
  int64_t dispatched = 0;
  std::optional<DType> dtype = {};  ///< if it is not the compute dtype
  bool ahead = false;               ///< of tokens further ahead, of which only training has values

  /// Integers have no gradient.
  bool has_gradient() const { return !dtype || is_floating_point(*dtype); }
  bool operator==(const BundleEntry&) const = default;
};

/// How rows of tokens pass to the experts of a block, which are spread over ranks, and the results back: operations of
/// the step program before and after the block, which takes and makes only rows.
struct DispatchSpec {
  int64_t experts = 0;  ///< of the layer, on all ranks
  int64_t parts = 1;    ///< of each expert: a row goes to the ranks of all
  DispatchMethod method = DispatchMethod::all_to_all;
  /// Tokens [N, D], the weights of their experts [N, k] in fp32, and these experts [N, k] in int32. The block takes what
  /// comes: rows [R, D], their weights [R, 1], and their experts [R, 1] among those of the rank.
  std::vector<BundleEntry> sent;
  /// Of each token the sum [N, D] of what the block makes of its rows.
  std::vector<BundleEntry> returned;
};

/// The backward pass of an embedding adds to the gradients of the rows that were looked up; it reads no
/// weights.
enum class BlockKind : uint8_t {
  embedding,
  layer,
  mtp,  ///< what a layer of multi-token prediction takes: of the hidden state and the embedding of a later token
  head
};

/// A layer whose experts are spread over ranks is cut into blocks (modelspec/expert_values.h).
enum class LayerPart : uint8_t {
  whole,
  router,   ///< attention, and the choice of experts
  shared,   ///< the expert that all tokens take
  experts,  ///< those of this rank
  join      ///< the sum of results and residual
};

/// A part of the model that runs forward and backward as a whole. Pipeline stages consist of whole blocks.
struct BlockSpec {
  std::string name;  ///< "embedding", "layers.3", "head"
  BlockKind kind = BlockKind::layer;
  int layer = -1;               ///< index of the transformer layer, -1 for embedding and heads
  std::vector<int> units = {};  ///< indices into ModelSpec::units
  std::vector<BundleEntry> inputs = {};
  std::vector<BundleEntry> outputs = {};
  CallList list = {};  ///< what it computes
  /// The same in generation, where no rank has slices of the tokens or parts of rows.
  CallList generation = {};
  LayerPart part = LayerPart::whole;
  std::optional<DispatchSpec> dispatch = {};  ///< of its inputs, and of its outputs back
  int stage = 0;                              ///< the pipeline stage that it belongs to
  double loss_weight = 1;                     ///< of a head
  /// How many tokens after the next one it predicts, or helps to: its labels are those of tokens so much later in the
  /// same document. The loss of such a head is a mean over them, and no part of the model's loss.
  int ahead = 0;
  // In a part of a pipeline (stage_part.h), if the neighbouring stage is on another rank. Values for later stages pass
  // through the stages between.
  std::vector<BundleEntry> arriving = {};  ///< what the stage receives, if this is its first block
  std::vector<BundleEntry> leaving = {};   ///< what it sends, if this is its last one

  /// Whether it is tensor operations that autograd differentiates: its list only states what they do (calls/operations.h).
  bool uses_autograd() const;
  /// False for the other parts of a layer that is cut into blocks.
  bool begins_layer() const { return part == LayerPart::whole || part == LayerPart::router; }
  /// What it takes from blocks before it and makes for those after it, dispatch included.
  const std::vector<BundleEntry>& takes() const { return dispatch ? dispatch->sent : inputs; }
  const std::vector<BundleEntry>& makes() const { return dispatch ? dispatch->returned : outputs; }
  /// Of each axis, by BlockAxis, whether it exchanges something with its ranks while it computes.
  std::array<bool, kBlockAxes> exchanged_axes() const;
};

/// list_cost() of what it computes. `recomputed` names regions and calls that backward runs again.
BlockCost block_cost(const BlockSpec& block, const CostContext& context,
                     const std::vector<std::string>& recomputed = {});

/// The outputs that its backward needs.
std::vector<std::string> kept_outputs(const BlockSpec& block);

/// A parameter that two blocks use. The unit of the first block owns it. Gradients of both are summed; norm,
/// update and checkpoint count it once. If the blocks are on different ranks, each holds a copy of the unit.
struct TieSpec {
  std::string parameter;  ///< "embedding.weight"
  std::string block;      ///< the second block: "head"
  std::string hf_alias;   ///< the name of a copy in Hugging Face files: "lm_head.weight"
};

/// A copy of a tensor that Hugging Face files of the model have, under another name: of embedding and head for a layer
/// of multi-token prediction, and of an A of an adapter that experts share for each of the others.
struct CopySpec {
  std::string original;  ///< "model.embed_tokens.weight"
  std::string hf_name;   ///< "model.layers.61.embed_tokens.weight"
};

/// A whole model, or what one rank holds of it: parts of tensors (tensor parallelism), or the blocks of some
/// pipeline stages (stage_part.h). Numbers before `units` are those of the model, except kv_heads and
/// attention_width of a rank's part of the heads.
struct ModelSpec {
  std::string family;
  bool further_layers = false;  ///< files may have layers after the last one, which are not read
  int64_t vocab_size = 0;
  int64_t width = 0;
  int64_t layers = 0;  ///< without those of multi-token prediction
  int ahead = 0;       ///< the largest BlockSpec::ahead
  int64_t max_position = 0;
  int64_t kv_heads = 0;  ///< a KV cache has layers * kv_heads * (head_dim + value_dim) elements per token
  int64_t head_dim = 0;
  int64_t value_dim = 0;        ///< of the heads of values
  int64_t attention_width = 0;  ///< query heads * head_dim
  RopeSpec rope;
  RopeSpec local_rope;  ///< of layers with a window, if its size is not 0
  std::vector<UnitSpec> units;
  std::vector<BlockSpec> blocks;  ///< in forward order
  std::vector<TieSpec> ties;
  std::vector<CopySpec> copies;
  /// Ranks over which it is divided, by BlockAxis. The units are one rank's part.
  std::array<int64_t, kBlockAxes> degrees = {1, 1, 1, 1};

  /// Number of parameters; tied ones count once. Of a whole model: a part has fewer.
  int64_t parameter_count() const;
  /// Those that a token uses: of experts, those that it takes.
  int64_t active_parameter_count() const;
  /// FLOPs per trained token by the formula of torchtitan: 6 N + 12 L width_attention seq_len, where N is
  /// that of active parameters without an untied embedding, and with an output projection for each head. Attention counts without the causal mask; a layer with a window sees no more keys
  /// than that. Of a whole model.
  double flops_per_token(int64_t seq_len) const;
  /// The values that blocks from `block` on take from blocks before it.
  std::vector<BundleEntry> values_before(std::size_t block) const;
  /// nullptr if there is no parameter of this name.
  const ParameterSpec* find_parameter(std::string_view name) const;
};

}  // namespace stepforge
