// SPDX-License-Identifier: Apache-2.0
// Balance of experts without a loss: after each step the correction of the router (router.h) rises by `rate` for experts that
// had fewer tokens than the mean and falls for those that had more (arXiv:2408.15664):
//
//   change[e]     = rate * sign(mean - tokens_per_expert[e])
//   correction[e] += change[e], with `centered` less the mean of all changes, so that the sum of corrections stays as it is
#pragma once

#include <ATen/core/Tensor.h>

namespace stepforge {

/// tokens_per_expert: [E] fp64, of the whole step (all micro-batches and ranks). flag: a scalar (kernels/scalars.h); if it is 0,
/// nothing changes. correction: [E] fp32 or fp64, changed in place. No autograd.
void update_router_correction(const at::Tensor& tokens_per_expert, double rate, bool centered,
                              const at::Tensor& flag, const at::Tensor& correction);

}  // namespace stepforge
