// SPDX-License-Identifier: Apache-2.0
// A model as data: its units and blocks. Tensors are allocated from it, checkpoints take their names from it,
// weights are imported and exported by it, and the planner and the FLOP counter read it.
// catalog/decoder_spec.h makes it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/modelspec/cost.h"
#include "stepforge/modelspec/parameter.h"

namespace stepforge {

/// A tensor that travels between blocks: [tokens, width] of the compute dtype.
struct BundleEntry {
  std::string name;  ///< "hidden"
  int64_t width = 0;
};

/// An embedding looks up rows by token ids: its backward adds to these rows' gradients and reads no weights.
enum class BlockKind : uint8_t { embedding, layer, head };

/// A region of autograd: what recomputation drops and pipelines cut between.
struct BlockSpec {
  std::string name;  ///< "embedding", "layers.3", "head"
  BlockKind kind = BlockKind::layer;
  int layer = -1;          ///< index of the transformer layer, -1 for embedding and head
  std::vector<int> units;  ///< indices into ModelSpec::units
  std::vector<BundleEntry> inputs;
  std::vector<BundleEntry> outputs;
  std::vector<RegionCost> regions;
};

/// A parameter that two blocks use. Its first user's unit owns it; gradients of all users are summed, and
/// norm, update and checkpoint see it once.
struct TieSpec {
  std::string parameter;  ///< "embedding.weight"
  std::string block;      ///< the other user: "head"
  std::string hf_alias;   ///< the name under which Hugging Face may store a copy: "lm_head.weight"
};

struct ModelSpec {
  std::string family;
  int64_t vocab_size = 0;
  int64_t width = 0;
  int64_t layers = 0;
  int64_t max_position = 0;
  int64_t kv_heads = 0;  ///< size of a KV cache: 2 * layers * kv_heads * head_dim elements per token
  int64_t head_dim = 0;
  int64_t attention_width = 0;  ///< query heads * head_dim
  std::vector<UnitSpec> units;
  std::vector<BlockSpec> blocks;  ///< in forward order
  std::vector<TieSpec> ties;

  /// Parameters, tied ones once.
  int64_t parameter_count() const;
  /// Trained FLOPs per token by torchtitan's formula: 6 (N - N_embedding, unless tied) + 12 L width_attention
  /// seq_len, without a causal discount.
  double flops_per_token(int64_t seq_len) const;
  const ParameterSpec* find_parameter(std::string_view name) const;
};

}  // namespace stepforge
