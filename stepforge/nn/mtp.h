// SPDX-License-Identifier: Apache-2.0
// What a layer of multi-token prediction takes (catalog/mtp_layers.h).
#pragma once

#include <string>

#include "stepforge/nn/block.h"
#include "stepforge/nn/functions.h"

namespace stepforge {

/// Rows [later; own] of width 2 D of two tensors [N, D].
at::Tensor join_later(const at::Tensor& later, const at::Tensor& own);

}  // namespace stepforge
