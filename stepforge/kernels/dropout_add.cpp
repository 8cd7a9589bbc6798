// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/dropout_add.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/random.h"
#include "stepforge/kernels/cpu/kernels.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {
namespace {

void check_operands(const at::Tensor& x, double p, const TokenCoords& coords) {
  check_shape(x, "dropout x", {x.size(0), x.size(1)});
  if (!(p >= 0.0 && p < 1.0)) throw Error(format("dropout: probability {} is not in [0, 1)", p));
  if (p == 0.0) return;
  check_tensor(coords.row_ids, "dropout row_ids", {x.size(0)}, at::kLong);
  check_tensor(coords.positions, "dropout positions", {x.size(0)}, at::kInt);
}

}  // namespace

DropoutKey dropout_key_of_step(uint64_t seed, uint64_t step) {
  return {mix_bits(stream_key(seed, "dropout") ^ mix_bits(step))};
}

DropoutKey dropout_key_of_site(DropoutKey step_key, uint64_t site) {
  return {mix_bits(step_key.key ^ mix_bits(site))};
}

void dropout_add_forward(const at::Tensor& x, const at::Tensor& residual, double p, DropoutKey key,
                         const TokenCoords& coords, const at::Tensor& out) {
  check_operands(x, p, coords);
  check_tensor(residual, "dropout_add residual", x.sizes(), x.scalar_type());
  check_tensor(out, "dropout_add out", x.sizes(), x.scalar_type());
  if (has_cpu_kernel(x)) {
    cpu::dropout_add_forward(x, residual, p, key, coords, out);
  } else {
    dropout_add_forward_reference(x, residual, p, key, coords, out);
  }
}

void dropout_add_backward(const at::Tensor& grad_out, double p, DropoutKey key, const TokenCoords& coords,
                          const at::Tensor& grad_x) {
  check_operands(grad_out, p, coords);
  check_tensor(grad_x, "dropout_add grad_x", grad_out.sizes(), grad_out.scalar_type());
  if (has_cpu_kernel(grad_out)) {
    cpu::dropout_add_backward(grad_out, p, key, coords, grad_x);
  } else {
    dropout_add_backward_reference(grad_out, p, key, coords, grad_x);
  }
}

at::Tensor dropout_factors_reference(int64_t channels, double p, DropoutKey key, const TokenCoords& coords) {
  const at::Tensor rows = coords.row_ids.cpu();
  const at::Tensor positions = coords.positions.cpu();
  const int64_t tokens = rows.numel();
  at::Tensor factors = at::empty({tokens, channels}, at::kFloat);
  const auto threshold = static_cast<uint64_t>(p * 0x1.0p32);
  const auto scale = static_cast<float>(1.0 / (1.0 - p));
  for (int64_t n = 0; n < tokens; ++n) {
    const auto row = static_cast<uint64_t>(rows.const_data_ptr<int64_t>()[n]);
    const uint64_t position = static_cast<uint32_t>(positions.const_data_ptr<int32_t>()[n]);
    for (int64_t c = 0; c < channels; ++c) {
      const auto words = philox(key.key, (position << 32) | static_cast<uint64_t>(c / 4), row);
      factors.mutable_data_ptr<float>()[n * channels + c] = words[c % 4] >= threshold ? scale : 0.0F;
    }
  }
  return factors;
}

void dropout_add_forward_reference(const at::Tensor& x, const at::Tensor& residual, double p, DropoutKey key,
                                   const TokenCoords& coords, const at::Tensor& out) {
  at::Tensor dropped = x.to(compute_type(x));
  if (p > 0.0) dropped = dropped * dropout_factors_reference(x.size(1), p, key, coords).to(x.device());
  out.copy_(residual.to(dropped.scalar_type()) + dropped);
}

void dropout_add_backward_reference(const at::Tensor& grad_out, double p, DropoutKey key,
                                    const TokenCoords& coords, const at::Tensor& grad_x) {
  at::Tensor grad = grad_out.to(compute_type(grad_out));
  if (p > 0.0)
    grad = grad * dropout_factors_reference(grad_out.size(1), p, key, coords).to(grad_out.device());
  grad_x.copy_(grad);
}

}  // namespace stepforge
