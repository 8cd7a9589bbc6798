// SPDX-License-Identifier: Apache-2.0
// The experts of an exact model (exact_model.h): a router, and linear experts of which each token takes some.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "stepforge/nn/block.h"
#include "stepforge/nn/expert_functions.h"
#include "stepforge/nn/parameter.h"

namespace stepforge {

/// The two experts of each token x [N, D] are those with the largest products with `router` [E, D], rounded, of which the
/// first counts among equals; the products are their weights too.
RoutedTokens exact_route(const at::Tensor& x, Parameter& router);

/// Of each token the sum over its experts of down (up x + bias) + bias times the weight, of which only the hidden units are
/// rounded, so that the results of the parts of an expert add up to that of the whole one. Looks up expert_gate_up, which is
/// up, and expert_down, which have this rank's experts: [E F, D] and [E D, F], or `biased` as catalog/biased_experts.h has
/// them, with two columns for each hidden unit.
ExpertFunction exact_experts(const ParameterLookup& parameters, const std::string& name, bool biased);

}  // namespace stepforge
