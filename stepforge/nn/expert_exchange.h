// SPDX-License-Identifier: Apache-2.0
// Expert parallelism as layers see it: exchanges with the ranks that hold the other experts. The function comes from
// outside, so that model code knows no ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include <ATen/core/Tensor.h>

#include "stepforge/modelspec/expert_parallel.h"

namespace stepforge {

/// An empty function if all experts are here.
struct ExpertExchange {
  ExpertParallel parallel = {};
  /// Sends the rows of `outgoing` (its first dimension), outgoing_rows[r] of them to rank r, one rank after the other;
  /// `incoming` has incoming_rows[r] from rank r. Numbers may be 0. Tensors are contiguous.
  std::function<void(const at::Tensor& outgoing, std::span<const int64_t> outgoing_rows,
                     const at::Tensor& incoming, std::span<const int64_t> incoming_rows)>
      all_to_all;

  bool several() const { return parallel.degree > 1; }
};

}  // namespace stepforge
