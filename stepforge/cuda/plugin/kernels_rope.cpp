// SPDX-License-Identifier: Apache-2.0
// Rows of kernels/rope.h.
#include "stepforge/cuda/plugin/arguments.h"
#include "stepforge/cuda/plugin/kernels.h"
#include "stepforge/cuda/plugin/launch.h"
#include "stepforge/cuda/rope.h"

namespace stepforge::cuda_plugin {

namespace {

bool takes_norm(const QkNorm& norm, const at::Tensor& qkv) {
  return !norm.present() || (takes_weight(norm.q_weight, qkv) && takes_weight(norm.k_weight, qkv) &&
                             norm.q_weight.scalar_type() == norm.k_weight.scalar_type());
}

cuda::QkRotation rotation_of(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& positions,
                             const RopeTable& table, const QkNorm& norm) {
  cuda::QkRotation rotation{.type = dtype_of(qkv),
                            .tokens = qkv.size(0),
                            .heads = shape.heads,
                            .kv_heads = shape.kv_heads,
                            .head_dim = shape.head_dim,
                            .positions = read<int32_t>(positions),
                            .cos = read<float>(table.cos),
                            .sin = read<float>(table.sin)};
  if (norm.present()) {
    rotation.q_weight = read_any(norm.q_weight);
    rotation.k_weight = read_any(norm.k_weight);
    rotation.weight_type = dtype_of(norm.q_weight);
    rotation.q_span = norm.q_span(shape);
    rotation.k_span = norm.k_span(shape);
    rotation.eps = norm.eps;
    rotation.offset = norm.offset;
  }
  return rotation;
}

}  // namespace

void qk_norm_rope_forward(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& positions,
                          const RopeTable& table, const QkNorm& norm, const at::Tensor& out,
                          const at::Tensor& rstd) {
  if (!takes_norm(norm, qkv))
    return reference::qk_norm_rope_forward(qkv, shape, positions, table, norm, out, rstd);
  on_stream_of(qkv, [&](cuda::Stream stream) {
    float* const to_rstd = norm.present() ? write<float>(rstd) : nullptr;
    cuda::qk_norm_rope_forward(rotation_of(qkv, shape, positions, table, norm), read_any(qkv), write_any(out),
                               to_rstd, stream);
  });
}

void qk_norm_rope_backward(const at::Tensor& grad_qkv, const at::Tensor& qkv, const AttentionShape& shape,
                           const at::Tensor& positions, const RopeTable& table, const QkNorm& norm,
                           const at::Tensor& rstd, const at::Tensor& grad_q_weight,
                           const at::Tensor& grad_k_weight) {
  if (!takes_norm(norm, grad_qkv))
    return reference::qk_norm_rope_backward(grad_qkv, qkv, shape, positions, table, norm, rstd, grad_q_weight,
                                            grad_k_weight);
  const cuda::QkRotation rotation = rotation_of(grad_qkv, shape, positions, table, norm);
  if (!norm.present()) {
    return on_stream_of(grad_qkv, [&](cuda::Stream stream) {
      cuda::qk_norm_rope_backward(rotation, write_any(grad_qkv), nullptr, nullptr, nullptr, nullptr, nullptr,
                                  stream);
    });
  }
  const at::Tensor partial_sums = workspace(cuda::rope_workspace_of(rotation), grad_qkv);
  on_stream_of(grad_qkv, [&](cuda::Stream stream) {
    cuda::qk_norm_rope_backward(rotation, write_any(grad_qkv), read_any(qkv), read<float>(rstd),
                                write<float>(grad_q_weight), write<float>(grad_k_weight),
                                write<float>(partial_sums), stream);
  });
}

}  // namespace stepforge::cuda_plugin
