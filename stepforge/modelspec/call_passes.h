// SPDX-License-Identifier: Apache-2.0
// What is added to a layer: functions from lists of calls to lists of calls.
#pragma once

#include <span>
#include <string>

#include "stepforge/modelspec/call_list.h"
#include "stepforge/modelspec/context_parallel.h"
#include "stepforge/modelspec/tensor_parallel.h"

namespace stepforge {

/// Tensor and sequence parallelism of a layer whose first product leads into it and whose last linear call leads out, as every
/// lookup does. Before the products of what enters, slices of the tokens are gathered; backward sums the gradient (f of
/// arXiv:1909.08053, g of arXiv:2205.05198). After the last, the shares of the ranks are summed, of all tokens or of a slice. A
/// layer that is not divided takes and leaves slices, if there are any. Weights that are whole but see other tokens or heads
/// on each rank sum their gradients.
CallList over_tensor(const CallList& list, const TensorParallel& tensor);

/// A layer of weights that are whole on every rank takes and makes this rank's slice of the tokens, if there are slices, and
/// exchanges nothing: the step sums the gradients of its weights (UnitMesh::slices).
CallList on_slices(const CallList& list, const TensorParallel& tensor);

/// Context parallelism: attention exchanges keys with the ranks that have the other tokens of each row, and around it
/// neighbours exchange tokens for heads.
CallList over_context(const CallList& list, const ContextParallel& context);

/// Without the lookups of tokens more than `ahead` further ahead, and the outputs that they are.
CallList without_ahead(const CallList& list, int64_t ahead);

/// Backward makes the results of these calls again. A name is that of a region ("mlp"), whose calls are all made again from
/// what enters it, except what leaves it, or of one call of a region ("mlp.swiglu").
void recompute_calls(CallList& list, std::span<const std::string> names);

}  // namespace stepforge
