// SPDX-License-Identifier: Apache-2.0
// Rows of kernels/rms_norm.h, bias.h, dropout_add.h, gated_add.h and swiglu.h.
#include "stepforge/cuda/bias.h"
#include "stepforge/cuda/dropout_add.h"
#include "stepforge/cuda/gated_add.h"
#include "stepforge/cuda/plugin/arguments.h"
#include "stepforge/cuda/plugin/kernels.h"
#include "stepforge/cuda/plugin/launch.h"
#include "stepforge/cuda/rms_norm.h"
#include "stepforge/cuda/swiglu.h"

namespace stepforge::cuda_plugin {

namespace {

cuda::RmsNorm norm_of(const at::Tensor& x, const at::Tensor& weight, double offset) {
  return {.type = dtype_of(x),
          .rows = x.size(0),
          .width = x.size(1),
          .weight = read_any(weight),
          .weight_type = dtype_of(weight),
          .offset = offset};
}

/// With p = 0 there may be no coordinates.
cuda::Dropout dropout_of(const at::Tensor& x, double p, DropoutKey key, const TokenCoords& coords) {
  return {.type = dtype_of(x),
          .rows = x.size(0),
          .width = x.size(1),
          .p = p,
          .key = key.key,
          .row_ids = p > 0.0 ? read<int64_t>(coords.row_ids) : nullptr,
          .positions = p > 0.0 ? read<int32_t>(coords.positions) : nullptr,
          .channel = coords.channel};
}

cuda::GatedRows gated_rows_of(const at::Tensor& gate_up, const GatedRows& rows) {
  return {.rows = gate_up.size(0),
          .width = gate_up.size(1) / 2,
          .activation = rows.activation,
          .clamped = rows.clamped.has_value(),
          .limits = rows.clamped.value_or(ClampedSwiglu()),
          .weights = read<float>(rows.weights),
          .slots = read<int32_t>(rows.slots)};
}

}  // namespace

void rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& out,
                      const at::Tensor& rstd, double offset) {
  if (!takes_weight(weight, x)) return reference::rms_norm_forward(x, weight, eps, out, rstd, offset);
  on_stream_of(x, [&](cuda::Stream stream) {
    cuda::rms_norm_forward(norm_of(x, weight, offset), read_any(x), eps, write_any(out), write<float>(rstd),
                           stream);
  });
}

void rms_norm_backward(const at::Tensor& grad_out, const at::Tensor& x, const at::Tensor& weight,
                       const at::Tensor& rstd, const at::Tensor& residual_grad, const at::Tensor& grad_x,
                       const at::Tensor& grad_weight, double offset) {
  if (!takes_weight(weight, x))
    return reference::rms_norm_backward(grad_out, x, weight, rstd, residual_grad, grad_x, grad_weight,
                                        offset);
  const at::Tensor partial_sums = workspace(cuda::workspace_of(x.size(0), x.size(1)), x);
  on_stream_of(x, [&](cuda::Stream stream) {
    cuda::rms_norm_backward(norm_of(x, weight, offset), read_any(grad_out), read_any(x), read<float>(rstd),
                            read_any(residual_grad), write_any(grad_x), write<float>(grad_weight),
                            write<float>(partial_sums), stream);
  });
}

void bias_forward(const at::Tensor& x, const at::Tensor& bias) {
  if (!takes_weight(bias, x)) return reference::bias_forward(x, bias);
  on_stream_of(x, [&](cuda::Stream stream) {
    cuda::bias_forward(dtype_of(x), write_any(x), dtype_of(bias), read_any(bias), x.size(0), x.size(1),
                       stream);
  });
}

void bias_backward(const at::Tensor& grad, const at::Tensor& grad_bias) {
  const at::Tensor partial_sums = workspace(cuda::workspace_of(grad.size(0), grad.size(1)), grad);
  on_stream_of(grad, [&](cuda::Stream stream) {
    cuda::bias_backward(dtype_of(grad), read_any(grad), grad.size(0), grad.size(1), write<float>(grad_bias),
                        write<float>(partial_sums), stream);
  });
}

void dropout_add_forward(const at::Tensor& x, const at::Tensor& residual, double p, DropoutKey key,
                         const TokenCoords& coords, const at::Tensor& out) {
  on_stream_of(x, [&](cuda::Stream stream) {
    cuda::dropout_add_forward(dropout_of(x, p, key, coords), read_any(x), read_any(residual), write_any(out),
                              stream);
  });
}

void dropout_add_backward(const at::Tensor& grad_out, double p, DropoutKey key, const TokenCoords& coords,
                          const at::Tensor& grad_x) {
  on_stream_of(grad_out, [&](cuda::Stream stream) {
    cuda::dropout_add_backward(dropout_of(grad_out, p, key, coords), read_any(grad_out), write_any(grad_x),
                               stream);
  });
}

void gated_add_forward(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                       const at::Tensor& out) {
  on_stream_of(y, [&](cuda::Stream stream) {
    cuda::gated_add_forward(dtype_of(y), read_any(x), read_any(y), read<float>(gate), y.size(0), y.size(1),
                            write_any(out), stream);
  });
}

void gated_add_backward(const at::Tensor& grad_out, const at::Tensor& y, const at::Tensor& gate,
                        const at::Tensor& grad_y, const at::Tensor& grad_gate) {
  on_stream_of(y, [&](cuda::Stream stream) {
    cuda::gated_add_backward(dtype_of(y), read_any(grad_out), read_any(y), read<float>(gate), y.size(0),
                             y.size(1), write_any(grad_y), write<float>(grad_gate), stream);
  });
}

void gated_forward(const at::Tensor& gate_up, const GatedRows& rows, const at::Tensor& out) {
  on_stream_of(gate_up, [&](cuda::Stream stream) {
    cuda::gated_forward(dtype_of(gate_up), read_any(gate_up), gated_rows_of(gate_up, rows), write_any(out),
                        stream);
  });
}

void gated_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const GatedRows& rows,
                    const at::Tensor& grad_gate_up, const at::Tensor& grad_weights) {
  on_stream_of(gate_up, [&](cuda::Stream stream) {
    cuda::gated_backward(dtype_of(gate_up), read_any(grad_out), read_any(gate_up),
                         gated_rows_of(gate_up, rows), write_any(grad_gate_up), write<float>(grad_weights),
                         stream);
  });
}

}  // namespace stepforge::cuda_plugin
