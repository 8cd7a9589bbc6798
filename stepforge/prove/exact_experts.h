// SPDX-License-Identifier: Apache-2.0
// The experts of an exact model (exact_model.h): a router, and linear experts of which each token takes some.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "stepforge/nn/expert_functions.h"
#include "stepforge/nn/parameter.h"

namespace stepforge {

/// The two experts of each token x [N, D] are those with the largest products with `router` [E, D], rounded, of which the
/// first counts among equals; the products are their weights too.
RoutedTokens exact_route(const at::Tensor& x, Parameter& router);

/// Of rows [R, D], each with one expert: down (up x) times its weight, of which only up x is rounded, so that the results of
/// the parts of an expert add up to that of the whole one. `up` [E F, D] and `down` [E D, F] have this rank's experts.
at::Tensor exact_results(const at::Tensor& rows, const RoutedTokens& routed, Parameter& up, Parameter& down);

/// Of each token x [N, D] the sum of the results of its experts, which are all here.
at::Tensor exact_experts(const at::Tensor& x, Parameter& router, Parameter& up, Parameter& down);

}  // namespace stepforge
