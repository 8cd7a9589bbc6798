// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/router_balance.h"

#include "stepforge/kernels/router_correction.h"
#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

void RouterBalance::update(int unit, Communicator* ranks, const at::Tensor& flag) {
  UnitStore& state = store_.unit(static_cast<size_t>(unit));
  const at::Tensor correction = state.master_view(0);
  const int64_t experts = correction.numel();
  const at::Tensor tokens =
      tally_.sums_of(state.spec().layer, experts, correction.device()).narrow(0, 0, experts);
  if (ranks != nullptr) ranks->all_reduce(bytes_of(tokens), DType::f64, state.options().unit);
  update_router_correction(tokens, speed_, /*centered=*/true, flag, correction);
}

}  // namespace stepforge
