// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/latent_heads.h"

#include <algorithm>
#include <vector>

#include <ATen/Parallel.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/cpu/simd.h"
#include "stepforge/kernels/kernel_list.h"

namespace stepforge::cpu {
namespace {

/// One token. Gradients have the layout of what they are of.
template <typename T>
struct Token {
  T* q;          ///< of all heads
  T* kv;         ///< of all heads
  T* k_rotated;  ///< of the token
  T* out;        ///< q heads, k heads, v heads
  int64_t heads;
  int64_t plain;    ///< elements of a head before those that are rotated
  int64_t rotated;  ///< elements that are
  int64_t value;
  const float* cos;  ///< [rotated / 2]
  const float* sin;
  float* sum;  ///< backward: scratch [rotated]

  int64_t dim() const { return plain + rotated; }
};

template <typename T>
STEPFORGE_INLINE void copy(const T* from, int64_t count, T* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}

template <typename T>
STEPFORGE_INLINE void rotate(const T* from, const Token<T>& token, float sign, T* to) {
  for (int64_t i = 0; i < token.rotated / 2; ++i) {
    const float even = load(from + 2 * i);
    const float odd = load(from + 2 * i + 1);
    const float sin = sign * token.sin[i];
    store(to + 2 * i, even * token.cos[i] - odd * sin);
    store(to + 2 * i + 1, odd * token.cos[i] + even * sin);
  }
}

template <typename T>
STEPFORGE_INLINE void forward_body(const Token<T>& token) {
  const Token<T> t = token;
  T* keys = t.out + t.heads * t.dim();
  T* values = keys + t.heads * t.dim();
  for (int64_t h = 0; h < t.heads; ++h) {
    const T* q = t.q + h * t.dim();
    const T* kv = t.kv + h * (t.plain + t.value);
    copy(q, t.plain, t.out + h * t.dim());
    rotate(q + t.plain, t, 1.0F, t.out + h * t.dim() + t.plain);
    copy(kv, t.plain, keys + h * t.dim());
    if (h == 0)
      rotate(static_cast<const T*>(t.k_rotated), t, 1.0F, keys + t.plain);
    else
      copy(keys + t.plain, t.rotated, keys + h * t.dim() + t.plain);
    copy(kv + t.plain, t.value, values + h * t.value);
  }
}

template <typename T>
STEPFORGE_INLINE void backward_body(const Token<T>& token) {
  const Token<T> t = token;
  const T* keys = t.out + t.heads * t.dim();
  const T* values = keys + t.heads * t.dim();
  std::fill(t.sum, t.sum + t.rotated, 0.0F);
  for (int64_t h = 0; h < t.heads; ++h) {
    const T* query = t.out + h * t.dim();
    copy(query, t.plain, t.q + h * t.dim());
    rotate(query + t.plain, t, -1.0F, t.q + h * t.dim() + t.plain);
    T* kv = t.kv + h * (t.plain + t.value);
    copy(keys + h * t.dim(), t.plain, kv);
    copy(values + h * t.value, t.value, kv + t.plain);
    const T* key = keys + h * t.dim() + t.plain;
#pragma omp simd
    for (int64_t i = 0; i < t.rotated; ++i) t.sum[i] += load(key + i);
  }
  for (int64_t i = 0; i < t.rotated / 2; ++i) {
    const float even = t.sum[2 * i];
    const float odd = t.sum[2 * i + 1];
    store(t.k_rotated + 2 * i, even * t.cos[i] + odd * t.sin[i]);
    store(t.k_rotated + 2 * i + 1, odd * t.cos[i] - even * t.sin[i]);
  }
}

STEPFORGE_SIMD_CLONES void forward_token(const Token<float>& token) {
  forward_body(token);
}
STEPFORGE_SIMD_CLONES void forward_token(const Token<BFloat16>& token) {
  forward_body(token);
}
STEPFORGE_SIMD_CLONES void backward_token(const Token<float>& token) {
  backward_body(token);
}
STEPFORGE_SIMD_CLONES void backward_token(const Token<BFloat16>& token) {
  backward_body(token);
}

struct Operands {
  const at::Tensor& q;
  const at::Tensor& kv;
  const at::Tensor& k_rotated;
  const at::Tensor& out;
  const AttentionShape& shape;
  const at::Tensor& positions;
  const RopeTable& table;
};

/// The row of the table for a token.
int64_t table_row(const Operands& o, int64_t token) {
  const int32_t position = o.positions.const_data_ptr<int32_t>()[token];
  if (position >= 0 && position < o.table.cos.size(0)) return position;
  throw Error(format("latent heads: position {} at token {} is outside the table of {} positions", position,
                     token, o.table.cos.size(0)));
}

template <typename T>
T* row_of(const at::Tensor& tensor, int64_t row) {
  return static_cast<T*>(tensor.data_ptr()) + row * tensor.stride(0);
}

template <typename T, typename Body>
void for_each_token(const Operands& o, const Body& body) {
  const int64_t rotated = o.k_rotated.size(1);
  at::parallel_for(0, o.out.size(0), 4, [&](int64_t begin, int64_t end) {
    std::vector<float> sum(static_cast<size_t>(rotated));
    for (int64_t n = begin; n < end; ++n) {
      const int64_t row = table_row(o, n);
      body(Token<T>{.q = row_of<T>(o.q, n),
                    .kv = row_of<T>(o.kv, n),
                    .k_rotated = row_of<T>(o.k_rotated, n),
                    .out = row_of<T>(o.out, n),
                    .heads = o.shape.heads,
                    .plain = o.shape.head_dim - rotated,
                    .rotated = rotated,
                    .value = o.shape.value_size(),
                    .cos = row_of<float>(o.table.cos, row),
                    .sin = row_of<float>(o.table.sin, row),
                    .sum = sum.data()});
    }
  });
}

}  // namespace

void latent_heads_forward(const at::Tensor& q, const at::Tensor& kv, const at::Tensor& k_rotated,
                          const AttentionShape& shape, const at::Tensor& positions, const RopeTable& table,
                          const at::Tensor& out) {
  const Operands operands{q, kv, k_rotated, out, shape, positions, table};
  if (out.scalar_type() == at::kFloat) {
    for_each_token<float>(operands, [](const Token<float>& token) { forward_token(token); });
  } else {
    for_each_token<BFloat16>(operands, [](const Token<BFloat16>& token) { forward_token(token); });
  }
}

void latent_heads_backward(const at::Tensor& grad_out, const AttentionShape& shape,
                           const at::Tensor& positions, const RopeTable& table, const at::Tensor& grad_q,
                           const at::Tensor& grad_kv, const at::Tensor& grad_k_rotated) {
  const Operands operands{grad_q, grad_kv, grad_k_rotated, grad_out, shape, positions, table};
  if (grad_out.scalar_type() == at::kFloat) {
    for_each_token<float>(operands, [](const Token<float>& token) { backward_token(token); });
  } else {
    for_each_token<BFloat16>(operands, [](const Token<BFloat16>& token) { backward_token(token); });
  }
}

}  // namespace stepforge::cpu
