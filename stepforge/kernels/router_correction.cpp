// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/router_correction.h"

#include <ATen/TensorOperators.h>

#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

void update_router_correction(const at::Tensor& tokens_per_expert, double rate, bool centered,
                              const at::Tensor& flag, const at::Tensor& correction) {
  check_tensor(tokens_per_expert, "router correction tokens_per_expert", {correction.numel()}, at::kDouble);
  check_scalar(flag, "router correction flag");
  check_tensor(correction, "router correction", {correction.numel()}, compute_type(correction));
  at::Tensor change = (tokens_per_expert.mean() - tokens_per_expert).sign() * rate;
  if (centered) change = change - change.mean();
  correction.add_(change * flag);
}

}  // namespace stepforge
