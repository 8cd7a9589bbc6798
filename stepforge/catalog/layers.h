// SPDX-License-Identifier: Apache-2.0
// The parameters and the list of calls of each layer, of which the specification of a decoder is composed.
//
// With tensor parallelism a layer is this rank's part, as in Megatron-LM: projections into a layer are divided
// by rows (heads, hidden units), those out of it by columns, embedding and head by tokens; norms are whole.
// Arguments are the sizes of the whole layer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/modelspec/call_list.h"
#include "stepforge/modelspec/context_parallel.h"
#include "stepforge/modelspec/layer_traits.h"
#include "stepforge/modelspec/parameter.h"
#include "stepforge/modelspec/tensor_parallel.h"

namespace stepforge {

struct LayerSpec {
  std::vector<ParameterSpec> parameters;
  CallList list = {};              ///< what it computes
  CallList generation = {};        ///< the same in generation (BlockSpec)
  UnitMesh mesh = UnitMesh::rows;  ///< of its parameters
};

struct AttentionDims {
  int64_t width = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t value_dim = 0;  ///< of the heads of values and of the result; 0: head_dim

  int64_t value_size() const { return value_dim > 0 ? value_dim : head_dim; }
  int64_t query_width() const { return heads * head_dim; }
  int64_t out_width() const { return heads * value_size(); }
  int64_t qkv_width() const { return query_width() + kv_heads * (head_dim + value_size()); }
};

/// Token embedding: [vocab, width], whose rows are multiplied by `factor`. `prefix` is Stepforge's name, `hf_name` the tensor's
/// name in Hugging Face files. `ahead`: how many further rows it looks up for each token, of tokens further ahead.
LayerSpec embedding_layer(const std::string& prefix, const std::string& hf_name, int64_t vocab, int64_t width,
                          const TensorParallel& tensor = {}, int64_t ahead = 0, double factor = 1.0);

/// norm, packed q/k/v projection with an optional bias, optional q/k norm, rope, packed causal attention, output
/// projection, norm, residual add; the traits say which norms there are. `hf_prefix` is "model.layers.3.";
/// `depth_std` initialises the output projection.
LayerSpec attention_layer(const std::string& prefix, const std::string& hf_prefix, const AttentionDims& dims,
                          const LayerTraits& traits, double depth_std, bool dropout,
                          const TensorParallel& tensor = {}, const ContextParallel& context = {});

/// norm, packed gate/up projection, SwiGLU, down projection, norm, residual add.
LayerSpec mlp_layer(const std::string& prefix, const std::string& hf_prefix, int64_t width, int64_t hidden,
                    const LayerTraits& traits, double depth_std, bool dropout,
                    const TensorParallel& tensor = {});

struct HeadDims {
  int64_t width = 0;
  int64_t vocab = 0;
  int64_t chunk = 0;        ///< tokens whose logits exist at once
  std::string output = {};  ///< the output projection [vocab, width] of another unit; empty: its own
  double norm_eps = 1e-6;
  double norm_offset = 0.0;  ///< added to the weights of the norm
  double logit_cap = 0.0;    ///< logits are cap * tanh(x / cap); 0: not capped
  std::string hf_norm = "model.norm.weight";
};

/// Final norm and output projection. Head and loss are one operation over chunks of tokens, so the logits of all tokens never
/// exist at once.
LayerSpec head_layer(const std::string& prefix, const HeadDims& head, const TensorParallel& tensor = {});

/// The name of a score in Hugging Face files.
inline constexpr std::string_view kScoreTensor = "score.weight";

/// What a reward model has in place of the vocabulary: final norm, and the score of each token (modelspec/calls/score.h). Its
/// one row [1, width] begins normal with the standard deviation `std`, and is whole on every rank: `tensor` is not divided. Of
/// `head` vocab, chunk, output and logit_cap are not used.
LayerSpec score_layer(const std::string& prefix, const HeadDims& head, double std,
                      const TensorParallel& tensor = {});

/// Initial standard deviation of the output projections of layer `layer`, as in torchtitan: 0.02 / sqrt(2
/// (layer + 1)).
double residual_std(int64_t layer);

/// Tokens per chunk of head and loss if the config does not set it: about 4 MiB of logits, at least 64
/// tokens.
int64_t automatic_loss_chunk(int64_t vocab);

}  // namespace stepforge
