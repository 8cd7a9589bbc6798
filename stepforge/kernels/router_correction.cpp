// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/router_correction.h"

#include <ATen/TensorOperators.h>

#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

void update_router_correction(const at::Tensor& tokens_per_expert, double rate, bool centered,
                              const at::Tensor& correction) {
  check_tensor(tokens_per_expert, "router correction tokens_per_expert", {correction.numel()}, at::kLong);
  check_tensor(correction, "router correction", {correction.numel()}, compute_type(correction));
  const at::Tensor load = tokens_per_expert.to(at::kDouble);
  at::Tensor change = (load.mean() - load).sign() * rate;
  if (centered) change = change - change.mean();
  correction.add_(change);
}

}  // namespace stepforge
