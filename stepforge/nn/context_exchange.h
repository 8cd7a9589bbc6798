// SPDX-License-Identifier: Apache-2.0
// Context parallelism as layers see it: exchanges with the ranks that hold the other tokens of the same rows.
// The functions come from outside, so that model code knows no ranks.
#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

#include "stepforge/kernels/pass_tensors.h"
#include "stepforge/modelspec/context_parallel.h"

namespace stepforge {

/// Empty functions if rows are whole. All tensors are contiguous; `parts` has one entry per rank in its first
/// dimension.
struct ContextExchange {
  ContextParallel parallel = {};
  // Between the parallel.across() ranks among which keys pass:
  /// parts = `part` of all ranks.
  std::function<void(const at::Tensor& part, const at::Tensor& parts)> gather;
  /// part = the sum over all ranks of their entry for this rank.
  std::function<void(const at::Tensor& parts, const at::Tensor& part)> sum_parts;
  /// For a ring.
  PassTensors pass;

  // Between the parallel.heads() ranks that exchange tokens for heads:
  /// Entry r of `outgoing` goes to rank r; entry r of `incoming` comes from there.
  std::function<void(const at::Tensor& outgoing, const at::Tensor& incoming)> all_to_all;

  /// Between all ranks that hold parts of the same rows: tensor = the sum of all.
  std::function<void(const at::Tensor& tensor)> sum = {};

  /// Whether rows are divided over ranks.
  bool several() const { return parallel.degree > 1; }
};

}  // namespace stepforge
