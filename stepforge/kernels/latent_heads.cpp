// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/latent_heads.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/kernel_table.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {
namespace {

void check_rows(const at::Tensor& tensor, const char* name, int64_t rows, int64_t width,
                at::ScalarType type) {
  if (tensor.dim() == 2 && tensor.size(0) == rows && tensor.size(1) == width && tensor.stride(1) == 1 &&
      tensor.scalar_type() == type) {
    return;
  }
  throw Error(format("latent heads: {} must be [{}, {}] of type {} with adjacent columns", name, rows, width,
                     c10::toString(type)));
}

/// kv and k_rotated, or their gradients.
void check_latent(const at::Tensor& kv, const at::Tensor& k_rotated, const AttentionShape& shape,
                  const at::Tensor& positions, const RopeTable& table, const at::Tensor& packed) {
  const int64_t rotated = 2 * table.cos.size(1);
  if (shape.heads < 1 || shape.kv_heads != shape.heads || shape.head_dim <= rotated) {
    throw Error(format(
        "latent heads: heads = {}, kv_heads = {}, head_dim = {}, of which {} are rotated: there must be as "
        "many heads of both kinds, and elements that are not rotated",
        shape.heads, shape.kv_heads, shape.head_dim, rotated));
  }
  const int64_t rows = packed.size(0);
  const at::ScalarType type = packed.scalar_type();
  check_tensor(packed, "latent heads", {rows, shape.qkv_width()}, type);
  check_tensor(positions, "latent heads positions", {rows}, at::kInt);
  check_rows(kv, "kv", rows, shape.heads * (shape.head_dim - rotated + shape.value_size()), type);
  check_rows(k_rotated, "k_rotated", rows, rotated, type);
}

/// [N, H, R] with the pairs of neighbours rotated; `sign` -1 turns back.
at::Tensor rotate_pairs(const at::Tensor& heads, const at::Tensor& positions, const RopeTable& table,
                        double sign) {
  const auto of_tokens = [&](const at::Tensor& rows) {
    return rows.index_select(0, positions).to(heads.scalar_type()).unsqueeze(1);
  };
  const at::Tensor cos = of_tokens(table.cos);
  const at::Tensor sin = of_tokens(table.sin) * sign;
  const at::Tensor even = heads.slice(2, 0, heads.size(2), 2);
  const at::Tensor odd = heads.slice(2, 1, heads.size(2), 2);
  return at::stack({even * cos - odd * sin, odd * cos + even * sin}, -1).reshape(heads.sizes());
}

/// [N, heads, dim] of the compute type.
at::Tensor by_head(const at::Tensor& rows, int64_t heads) {
  return rows.to(compute_type(rows)).reshape({rows.size(0), heads, -1});
}

}  // namespace

void latent_heads_forward(const at::Tensor& q, const at::Tensor& kv, const at::Tensor& k_rotated,
                          const AttentionShape& shape, const at::Tensor& positions, const RopeTable& table,
                          const at::Tensor& out) {
  check_latent(kv, k_rotated, shape, positions, table, out);
  check_rows(q, "q", out.size(0), shape.q_width(), out.scalar_type());
  pick(&KernelTable::latent_heads_forward, out)(q, kv, k_rotated, shape, positions, table, out);
}

void latent_heads_backward(const at::Tensor& grad_out, const AttentionShape& shape,
                           const at::Tensor& positions, const RopeTable& table, const at::Tensor& grad_q,
                           const at::Tensor& grad_kv, const at::Tensor& grad_k_rotated) {
  check_latent(grad_kv, grad_k_rotated, shape, positions, table, grad_out);
  check_rows(grad_q, "grad_q", grad_out.size(0), shape.q_width(), grad_out.scalar_type());
  pick(&KernelTable::latent_heads_backward, grad_out)(grad_out, shape, positions, table, grad_q, grad_kv,
                                                      grad_k_rotated);
}

void reference::latent_heads_forward(const at::Tensor& q, const at::Tensor& kv, const at::Tensor& k_rotated,
                                     const AttentionShape& shape, const at::Tensor& positions,
                                     const RopeTable& table, const at::Tensor& out) {
  const int64_t plain = shape.head_dim - k_rotated.size(1);
  const at::Tensor queries = by_head(q, shape.heads);
  const at::Tensor keys = by_head(kv, shape.heads);
  const auto rotated = [&](const at::Tensor& heads) { return rotate_pairs(heads, positions, table, 1.0); };
  const at::Tensor key_end = rotated(by_head(k_rotated, 1)).expand({-1, shape.heads, -1});
  const auto write = [&](int64_t begin, const at::Tensor& heads) {
    out.narrow(1, begin, heads.size(1) * heads.size(2)).copy_(heads.reshape({out.size(0), -1}));
  };
  write(0, at::cat({queries.slice(2, 0, plain), rotated(queries.slice(2, plain))}, 2));
  write(shape.q_width(), at::cat({keys.slice(2, 0, plain), key_end}, 2));
  write(shape.q_width() + shape.k_width(), keys.slice(2, plain));
}

void reference::latent_heads_backward(const at::Tensor& grad_out, const AttentionShape& shape,
                                      const at::Tensor& positions, const RopeTable& table,
                                      const at::Tensor& grad_q, const at::Tensor& grad_kv,
                                      const at::Tensor& grad_k_rotated) {
  const int64_t plain = shape.head_dim - grad_k_rotated.size(1);
  const QueryKeyValue gradients = split_qkv(grad_out, shape);
  const auto back = [&](const at::Tensor& heads) { return rotate_pairs(heads, positions, table, -1.0); };
  const at::Tensor queries = by_head(gradients.q, shape.heads);
  const at::Tensor keys = by_head(gradients.k, shape.heads);
  const at::Tensor values = by_head(gradients.v, shape.heads);
  grad_q.copy_(at::cat({queries.slice(2, 0, plain), back(queries.slice(2, plain))}, 2)
                   .reshape({grad_out.size(0), -1}));
  grad_kv.copy_(at::cat({keys.slice(2, 0, plain), values}, 2).reshape({grad_out.size(0), -1}));
  grad_k_rotated.copy_(back(keys.slice(2, plain).sum(1, /*keepdim=*/true)).squeeze(1));
}

}  // namespace stepforge
