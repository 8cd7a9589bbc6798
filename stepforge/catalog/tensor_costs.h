// SPDX-License-Identifier: Apache-2.0
// What tensor parallelism adds to the cost of linear layers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stepforge/modelspec/cost.h"
#include "stepforge/modelspec/tensor_parallel.h"

namespace stepforge {

/// An exchange of `elements` per token between the ranks that hold the parts of a layer.
Exchange over_tensor(ExchangeKind kind, Elements elements);

/// What is exchanged where a layer begins: all slices of the tokens are gathered, and the gradient of all is
/// summed; without slices only that. (g of arXiv:2205.05198, f of arXiv:1909.08053.) Of a layer that is not divided
/// every rank has all of the gradient, and takes its slice.
void add_enter(std::vector<CallSpec>& calls, int64_t width, const TensorParallel& tensor);

/// What is exchanged where a layer ends: the shares of all ranks are summed, of a slice of the tokens or of all. Of
/// a layer that is not divided a rank takes its slice. In backward the gradient of all tokens is gathered from the
/// slices.
void add_leave(std::vector<CallSpec>& calls, int64_t width, const TensorParallel& tensor);

/// [*, in] x [in, out] by the parameter `weight`, at the begin of a layer. If its input is a slice of the tokens,
/// it keeps that only, and all of it is gathered once more in backward. Keeps its input, unless the block
/// does: then `keeps_input` is false.
void add_enter_linear(std::vector<CallSpec>& calls, const std::string& name, const std::string& weight,
                      int64_t in, int64_t out, const TensorParallel& tensor, bool keeps_input = true);

/// The same at the end of a layer. Its result is the share of all tokens, of which a slice is summed; in backward
/// the gradient of all tokens is gathered. Keeps its input unless its producer does.
void add_leave_linear(std::vector<CallSpec>& calls, const std::string& name, const std::string& weight,
                      int64_t in, int64_t out, bool keeps_input, const TensorParallel& tensor);

/// For a region of weights that are whole on every rank: it computes with this rank's slice of the tokens and exchanges
/// nothing, since the step sums the gradients of its weights (UnitMesh::slices). Without slices it stays as it is.
void compute_on_slices(RegionSpec& region, const TensorParallel& tensor);

}  // namespace stepforge
