// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/router_balance.h"

#include <ATen/ops/zeros.h>

#include "stepforge/kernels/router_correction.h"
#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

void RouterBalance::add(const RouterReport& report) {
  at::Tensor& tokens = tokens_[report.layer];
  if (tokens.defined())
    tokens.add_(report.tokens_per_expert);
  else
    tokens = report.tokens_per_expert.to(at::kDouble);
}

void RouterBalance::update(int unit, Communicator* ranks, const at::Tensor& flag) {
  UnitStore& state = store_.unit(static_cast<size_t>(unit));
  const at::Tensor correction = state.master_view(0);
  at::Tensor& tokens = tokens_[state.spec().layer];
  if (!tokens.defined()) tokens = at::zeros(correction.sizes(), correction.options().dtype(at::kDouble));
  if (ranks != nullptr) ranks->all_reduce(bytes_of(tokens), DType::f64, state.options().unit);
  update_router_correction(tokens, speed_, /*centered=*/true, flag, correction);
}

}  // namespace stepforge
