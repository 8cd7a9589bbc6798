// SPDX-License-Identifier: Apache-2.0
// Multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2): layers after the last one, each followed by a head,
// which predict tokens after the next one. The layer of depth k = 1, 2, ... of a model of N layers is a chain of blocks:
//
//   block            takes                makes       of token i
//   layers.N.mtp     hidden, embedded.k   hidden      projection [norm(embedded.k); norm(normed hidden of depth k - 1)]
//   layers.N         hidden               hidden      an ordinary layer of the family
//   layers.N.head    hidden                           the loss of token i + k + 1, by a norm of its own and the output
//                                                     projection of the model's head
//
// The embedding of the model makes embedded.k, of token i + k, beside hidden: batches have these tokens (Batch::ahead), so no
// rank needs tokens of another one. With sequence parallelism layers.N.mtp computes with a slice of the tokens by whole weights.
//
// Depth 0 is the model itself. What passes from a depth to the next has gone through the norm of its head, as in Megatron-LM and
// in vLLM's use of published weights. A token whose document ends before token i + k has a zero in the embedding's place.
//
// Saved per token by layers.N.mtp, of width D, beside its inputs: normed hidden (D), what the projection takes (2 D), and the
// rstd of three norms (4 bytes each).
#pragma once

#include <cstdint>
#include <string>

#include "stepforge/catalog/layers.h"
#include "stepforge/config/config.h"
#include "stepforge/modelspec/model_spec.h"

namespace stepforge {

/// "embedded.1", of tokens one further ahead.
BundleEntry mtp_embedded(const BundleEntry& hidden, int64_t depth);

/// "layers.3" for depth 1 of a model of 3 layers.
std::string mtp_name(const ModelConfig& model, int64_t depth);

/// The norm of the head of a depth: "head.norm" for 0, then "layers.3.head.norm".
std::string mtp_norm(const ModelConfig& model, int64_t depth);

/// embedding_norm, hidden_norm, and projection [width, 2 width], which takes the embedding first. `prefix` is "layers.3.mtp",
/// `hf_prefix` "model.layers.3."; `last_norm` names the norm of the depth before.
LayerSpec mtp_layer(const std::string& prefix, const std::string& hf_prefix, const std::string& last_norm,
                    int64_t width, const LayerTraits& traits, const TensorParallel& tensor = {});

}  // namespace stepforge
