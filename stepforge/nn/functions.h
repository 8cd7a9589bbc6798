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
#include "stepforge/modelspec/layer_traits.h"
#include "stepforge/nn/context.h"
#include "stepforge/nn/parameter.h"
#include "stepforge/nn/vocabulary_part.h"

namespace stepforge {

/// Rows of `table` [vocab, width] at `tokens` [N] int32, times `factor`. If `part` says that it holds a part of the
/// vocabulary, rows of other tokens are 0.
at::Tensor embed(const at::Tensor& tokens, Parameter& table, const VocabularyPart& part = {},
                 double factor = 1.0);

/// Whether there is a slice of the tokens between the divided matrices of a layer (sequence parallelism).
/// Generation, whose number of tokens is any, has all tokens there.
bool takes_slice(const TensorExchange& exchange, const Context& context);

/// The slices [n, D] of all ranks, one after the other, and the sum of this rank's slice. No autograd.
at::Tensor all_slices(const at::Tensor& slice, const TensorExchange& exchange);
at::Tensor sum_of_slice(const at::Tensor& whole, const TensorExchange& exchange);

/// x, or if it is a slice of the tokens, all of them. No autograd.
at::Tensor all_tokens(const at::Tensor& x, const TensorExchange& exchange, const Context& context);

/// x W^T; saves x for the gradient of a trained weight. x [N, in], weight [out, in].
at::Tensor linear(const at::Tensor& x, Parameter& weight);

/// Whether a rank has a part of this parameter.
inline bool is_divided(const Parameter& weight) {
  return weight.spec().is_sliced();
}

/// x for a layer that every rank has whole: if it is a slice of the tokens, all of them. `exchange` must outlive the graph.
at::Tensor enter_layer(const at::Tensor& x, const TensorExchange& exchange, const Context& context);

/// The slots of a layer whose matrices may be divided over ranks; without effect if `exchange` is empty. It must
/// outlive the graph.
/// enter_linear(): linear(), where x may be a slice of the tokens, of which all are then gathered. If the weight is
/// divided by rows, the gradient of x is summed. (f of arXiv:1909.08053, g of arXiv:2205.05198.)
/// leave_layer(): x is the result of a layer for all tokens, or the gradient before a head. If the layer is divided,
/// it is a share of the sum, which is made in place. Returns all of it, or a slice.
at::Tensor enter_linear(const at::Tensor& x, Parameter& weight, const TensorExchange& exchange,
                        const Context& context);
/// leave_linear(): linear() and leave_layer(), by a weight that is divided by columns or not at all.
at::Tensor leave_layer(const at::Tensor& x, bool divided, const TensorExchange& exchange,
                       const Context& context);
at::Tensor leave_linear(const at::Tensor& x, Parameter& weight, const TensorExchange& exchange,
                        const Context& context);

/// Generation: appends the keys and values of the new tokens to context.cache and attends to all of it. `out`
/// [N, shape.out_width()] is written; sinks as in attention_cached(). No autograd.
void attend_cached(const at::Tensor& qkv, const AttentionShape& shape, const Context& context, int64_t layer,
                   const at::Tensor& out, const at::Tensor& sinks = {});

/// residual + dropout(branch), in place on `branch`. `site`: the number of this dropout in the model. With
/// sequence parallelism (takes_slice()) both are this rank's slice.
at::Tensor residual_add(const at::Tensor& branch, const at::Tensor& residual, const Context& context,
                        uint64_t site, const TensorExchange& exchange = {});

/// The same as a new tensor.
at::Tensor residual_sum(const at::Tensor& branch, const at::Tensor& residual, const Context& context,
                        uint64_t site, const TensorExchange& exchange = {});

/// Runs `body` on x as the region `name`. If the running block recomputes it, only x is saved and `body` runs
/// again in backward, with the same bits.
at::Tensor recompute_region(const Context& context, const char* name,
                            const std::function<at::Tensor(const at::Tensor&)>& body, const at::Tensor& x);

/// The same with several inputs, of which those of an integer type have no gradient.
at::Tensor recompute_region(const Context& context, const char* name,
                            const std::function<at::Tensor(const std::vector<at::Tensor>&)>& body,
                            const std::vector<at::Tensor>& inputs);

}  // namespace stepforge
