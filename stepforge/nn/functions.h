// SPDX-License-Identifier: Apache-2.0
// The autograd functions that blocks are made of. Each is one node: its forward calls one fused operation,
// its backward writes weight gradients directly into the parameters' views of the flat gradient and returns
// the input's gradient only. Activations are [tokens, width], contiguous, of the compute dtype. All functions
// throw Error or c10::Error if shapes do not match.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include <ATen/core/Tensor.h>

#include "stepforge/kernels/attention.h"
#include "stepforge/kernels/divided.h"
#include "stepforge/kernels/rope.h"
#include "stepforge/nn/context.h"
#include "stepforge/nn/context_exchange.h"
#include "stepforge/nn/parameter.h"

namespace stepforge {

/// Rows of `table` [vocab, width] at `tokens` [N] int32. If `part` says that it holds a part of the
/// vocabulary, rows of other tokens are 0.
at::Tensor embed(const at::Tensor& tokens, Parameter& table, const VocabularyPart& part = {});

/// The tokens of an embedding or of an output projection.
VocabularyPart vocabulary_part(const ParameterSpec& table);

/// The slots of a layer whose matrices are divided over ranks; x itself if `sums` is empty. Before a
/// projection that is divided by rows: x, whose gradient is summed. After one that is divided by columns: the
/// sum of x, in place; the gradient passes. `sums` must outlive the graph. (f and g of Megatron-LM,
/// arXiv:1909.08053.)
at::Tensor enter_divided(const at::Tensor& x, const TensorSums& sums);
at::Tensor leave_divided(const at::Tensor& x, const TensorSums& sums);

/// x W^T; saves x for the weight's gradient. x [N, in], weight [out, in].
at::Tensor linear(const at::Tensor& x, Parameter& weight);

/// The start of a residual branch: {norm(x), x}. The second result is x for the residual path; its
/// gradient and the norm's are added in one pass.
std::pair<at::Tensor, at::Tensor> pre_norm(const at::Tensor& x, Parameter& weight, double eps);

/// Optional q/k norm, then rotary embedding of q and k inside packed qkv [N, (heads + 2 kv_heads) head_dim].
/// Without norms it works in place. `q_norm` and `k_norm` are both null or both given; their gradients are
/// summed over the ranks of `sums`, each of which has some of the heads.
at::Tensor rotate(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& positions,
                  const RopeTable& rope, Parameter* q_norm, Parameter* k_norm, double eps,
                  const TensorSums& sums = {});

/// Causal attention inside each document of the batch. qkv is the result of rotate(); returns [N, heads *
/// head_dim].
at::Tensor attend(const at::Tensor& qkv, const AttentionShape& shape, const BatchTensors& batch);

/// The same for this rank's part of each row, by the method of `exchange`, which must outlive the graph.
at::Tensor attend_part(const at::Tensor& qkv, const AttentionShape& shape, const BatchTensors& batch,
                       const ContextExchange& exchange);

/// silu(gate) * up of packed [N, 2 F].
at::Tensor swiglu(const at::Tensor& gate_up);

/// residual + dropout(branch), in place on `branch`. `site`: the number of this dropout in the model.
at::Tensor residual_add(const at::Tensor& branch, const at::Tensor& residual, const Context& context,
                        uint64_t site);

/// Runs `body` on x as the region `name`. If the running block recomputes it, only x is saved and `body` runs
/// again in backward, with the same bits.
at::Tensor recompute_region(const Context& context, const char* name,
                            const std::function<at::Tensor(const at::Tensor&)>& body, const at::Tensor& x);

}  // namespace stepforge
