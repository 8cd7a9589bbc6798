// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/expert_parts.h"

#include <array>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

int64_t experts_per_rank(int64_t experts, int64_t parts, int64_t ranks) {
  if (ranks % parts != 0 || experts % (ranks / parts) != 0) {
    throw Error(format("{} experts{} cannot be spread evenly over {} ranks", experts,
                       parts == 1 ? "" : format(" of {} parts", parts), ranks));
  }
  return experts / (ranks / parts);
}

PartChoice choose_parts(const at::Tensor& weights, const at::Tensor& indices, int64_t experts, int64_t parts,
                        int64_t ranks) {
  const int64_t held = experts_per_rank(experts, parts, ranks);
  if (parts == 1) return {weights, indices, experts};
  const at::Tensor whole = indices.to(at::kLong).unsqueeze(2);
  const at::Tensor owner = whole.floor_divide(held) * parts;
  const at::Tensor part = at::arange(parts, whole.options());
  const at::Tensor chosen = (owner + part) * held + whole.remainder(held);
  const at::Tensor repeated = weights.unsqueeze(2).expand(chosen.sizes());
  const std::array<int64_t, 2> shape = {indices.size(0), indices.size(1) * parts};
  return {repeated.reshape(shape), chosen.view(shape).to(at::kInt), experts * parts};
}

at::Tensor sum_of_parts(const at::Tensor& gradient, int64_t parts) {
  return parts == 1 ? gradient : gradient.view({gradient.size(0), gradient.size(1) / parts, parts}).sum(2);
}

}  // namespace stepforge
