// SPDX-License-Identifier: Apache-2.0
// Exchanges with other ranks that have the same values as this one: divided layers without ranks.
#pragma once

#include <cstdint>
#include <future>
#include <span>

#include <ATen/core/Tensor.h>

#include "stepforge/kernels/divided.h"
#include "stepforge/nn/context_exchange.h"

namespace stepforge::testing {

inline std::shared_future<void> from_equal_rank(const at::Tensor& outgoing, const at::Tensor& incoming,
                                                int64_t) {
  incoming.copy_(outgoing);
  std::promise<void> done;
  done.set_value();
  return done.get_future().share();
}

/// Every other rank has the same tokens.
inline ContextExchange of_equal_ranks(const ContextParallel& context) {
  if (context.degree == 1) return {};
  return {.parallel = context,
          .gather = [](const at::Tensor& part,
                       const at::Tensor& parts) { parts.view({-1, part.size(0), part.size(1)}).copy_(part); },
          .sum_parts = [](const at::Tensor& parts,
                          const at::Tensor& part) { part.copy_(parts.slice(0, 0, part.size(0))); },
          .pass = from_equal_rank,
          .all_to_all = [](const at::Tensor& outgoing,
                           const at::Tensor& incoming) { incoming.copy_(outgoing.view(incoming.sizes())); }};
}

/// Every other rank has the same tokens and the same share.
inline TensorExchange of_equal_parts(const TensorParallel& tensor) {
  if (tensor.degree == 1) return {};
  return {
      .parallel = tensor,
      .sum = [](const at::Tensor&) {},
      .max = [](const at::Tensor&) {},
      .gather = [](const at::Tensor& slice,
                   const at::Tensor& whole) { whole.view({-1, slice.size(0), slice.size(1)}).copy_(slice); },
      .sum_slice = [](const at::Tensor& whole,
                      const at::Tensor& slice) { slice.copy_(whole.slice(0, 0, slice.size(0))); },
      .pass = from_equal_rank,
      .add = [](std::span<const at::Tensor>, const at::Tensor&) {}};
}

}  // namespace stepforge::testing
