// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/rope.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/cpu/simd.h"
#include "stepforge/kernels/kernel_list.h"
#include "stepforge/kernels/rms_norm.h"

namespace stepforge::cpu {
namespace {

/// Sizes and tables of one call. The first `heads` heads are query heads, the next `kv_heads` key heads.
struct Rotation {
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  const float* cos;
  const float* sin;
  const int32_t* positions;
  const float* q_weight;  ///< null without a norm
  const float* k_weight;
  int64_t q_span;  ///< heads that are normed together; 1 without a norm
  int64_t k_span;
  float eps;

  int64_t rotated() const { return heads + kv_heads; }
  int64_t width() const { return (heads + 2 * kv_heads) * head_dim; }
  int64_t norms() const { return heads / q_span + kv_heads / k_span; }
  int64_t q_width() const { return q_span * head_dim; }
  int64_t k_width() const { return k_span * head_dim; }
  /// The shares of the gradients of both weights, and scratch for heads that are normed together.
  int64_t partial_width() const { return q_width() + k_width() + std::max(q_width(), k_width()); }
};

/// Rotates each pair; `out` may be `x`.
template <typename T>
STEPFORGE_INLINE void rotate_head(const T* x, const float* cos, const float* sin, T* out, int64_t half) {
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const float low = load(x + i);
    const float high = load(x + i + half);
    store(out + i, low * cos[i] - high * sin[i]);
    store(out + i + half, high * cos[i] + low * sin[i]);
  }
}

/// rotate_head of x * scale * weight.
template <typename T>
STEPFORGE_INLINE void rotate_normed_head(const T* x, float scale, const float* weight, const float* cos,
                                         const float* sin, T* out, int64_t half) {
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const float low = load(x + i) * scale * weight[i];
    const float high = load(x + i + half) * scale * weight[i + half];
    store(out + i, low * cos[i] - high * sin[i]);
    store(out + i + half, high * cos[i] + low * sin[i]);
  }
}

template <typename T>
STEPFORGE_INLINE void forward_tokens_body(const T* qkv, const Rotation& r, T* out, float* rstd, int64_t begin,
                                          int64_t end) {
  const int64_t half = r.head_dim / 2;
  for (int64_t n = begin; n < end; ++n) {
    const float* cos = r.cos + r.positions[n] * half;
    const float* sin = r.sin + r.positions[n] * half;
    float* next_rstd = rstd + (r.q_weight == nullptr ? 0 : n * r.norms());
    for (int64_t h = 0; h < r.rotated();) {
      const T* x = qkv + n * r.width() + h * r.head_dim;
      T* target = out + n * r.width() + h * r.head_dim;
      if (r.q_weight == nullptr) {
        rotate_head(x, cos, sin, target, half);
        ++h;
        continue;
      }
      const int64_t span = h < r.heads ? r.q_span : r.k_span;
      const float* weight = h < r.heads ? r.q_weight : r.k_weight;
      const int64_t normed = span * r.head_dim;
      float squares = 0.0F;
#pragma omp simd reduction(+ : squares)
      for (int64_t i = 0; i < normed; ++i) squares += load(x + i) * load(x + i);
      const float scale = 1.0F / std::sqrt(squares / static_cast<float>(normed) + r.eps);
      *next_rstd++ = scale;
      for (int64_t i = 0; i < normed; i += r.head_dim)
        rotate_normed_head(x + i, scale, weight + i, cos, sin, target + i, half);
      h += span;
    }
    const int64_t values = n * r.width() + r.rotated() * r.head_dim;
    if (out != qkv) {
      std::memcpy(out + values, qkv + values, static_cast<size_t>(r.kv_heads * r.head_dim) * sizeof(T));
    }
  }
}

/// Rotates the gradient of one head back.
template <typename T>
STEPFORGE_INLINE void turn_back(const T* grad, const float* cos, const float* sin, float* turned,
                                int64_t half) {
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const float low = load(grad + i);
    const float high = load(grad + i + half);
    turned[i] = low * cos[i] + high * sin[i];
    turned[i + half] = high * cos[i] - low * sin[i];
  }
}

/// The gradient of heads that are normed together, `width` elements, from the one turned back; adds its share of the
/// weight's gradient to `partial` [width].
template <typename T>
STEPFORGE_INLINE void norm_gradient(T* grad, const T* x, float scale, const float* weight, float* partial,
                                    const float* turned, int64_t width) {
  float dot = 0.0F;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < width; ++i) dot += turned[i] * weight[i] * load(x + i);
  const float pull = dot * scale * scale / static_cast<float>(width);
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    const float value = load(x + i);
    partial[i] += turned[i] * value * scale;
    store(grad + i, scale * (turned[i] * weight[i] - value * pull));
  }
}

template <typename T>
STEPFORGE_INLINE void plain_tokens_gradient_body(T* grad_qkv, const Rotation& r, int64_t begin, int64_t end) {
  const int64_t half = r.head_dim / 2;
  for (int64_t n = begin; n < end; ++n) {
    const float* cos = r.cos + r.positions[n] * half;
    const float* sin = r.sin + r.positions[n] * half;
    for (int64_t h = 0; h < r.rotated(); ++h) {
      T* grad = grad_qkv + n * r.width() + h * r.head_dim;
#pragma omp simd
      for (int64_t i = 0; i < half; ++i) {
        const float low = load(grad + i);
        const float high = load(grad + i + half);
        store(grad + i, low * cos[i] + high * sin[i]);
        store(grad + i + half, high * cos[i] - low * sin[i]);
      }
    }
  }
}

/// `partial` [partial_width()]: the range's shares of grad_q_weight and of grad_k_weight, and scratch.
template <typename T>
STEPFORGE_INLINE void normed_tokens_gradient_body(T* grad_qkv, const T* qkv, const Rotation& r,
                                                  const float* rstd, float* partial, int64_t begin,
                                                  int64_t end) {
  const int64_t half = r.head_dim / 2;
  float* const k_partial = partial + r.q_width();
  float* const turned = k_partial + r.k_width();
  for (float* p = partial; p < turned; ++p) *p = 0.0F;
  for (int64_t n = begin; n < end; ++n) {
    const float* cos = r.cos + r.positions[n] * half;
    const float* sin = r.sin + r.positions[n] * half;
    const float* next_rstd = rstd + n * r.norms();
    for (int64_t h = 0; h < r.rotated();) {
      const int64_t offset = n * r.width() + h * r.head_dim;
      const bool query = h < r.heads;
      const int64_t span = query ? r.q_span : r.k_span;
      const int64_t normed = span * r.head_dim;
      for (int64_t i = 0; i < normed; i += r.head_dim)
        turn_back(grad_qkv + offset + i, cos, sin, turned + i, half);
      norm_gradient(grad_qkv + offset, qkv + offset, *next_rstd++, query ? r.q_weight : r.k_weight,
                    query ? partial : k_partial, turned, normed);
      h += span;
    }
  }
}

STEPFORGE_SIMD_CLONES void forward_tokens(const float* qkv, const Rotation& r, float* out, float* rstd,
                                          int64_t begin, int64_t end) {
  forward_tokens_body(qkv, r, out, rstd, begin, end);
}
STEPFORGE_SIMD_CLONES void forward_tokens(const BFloat16* qkv, const Rotation& r, BFloat16* out, float* rstd,
                                          int64_t begin, int64_t end) {
  forward_tokens_body(qkv, r, out, rstd, begin, end);
}
STEPFORGE_SIMD_CLONES void plain_tokens_gradient(float* grad_qkv, const Rotation& r, int64_t begin,
                                                 int64_t end) {
  plain_tokens_gradient_body(grad_qkv, r, begin, end);
}
STEPFORGE_SIMD_CLONES void plain_tokens_gradient(BFloat16* grad_qkv, const Rotation& r, int64_t begin,
                                                 int64_t end) {
  plain_tokens_gradient_body(grad_qkv, r, begin, end);
}
STEPFORGE_SIMD_CLONES void normed_tokens_gradient(float* grad_qkv, const float* qkv, const Rotation& r,
                                                  const float* rstd, float* partial, int64_t begin,
                                                  int64_t end) {
  normed_tokens_gradient_body(grad_qkv, qkv, r, rstd, partial, begin, end);
}
STEPFORGE_SIMD_CLONES void normed_tokens_gradient(BFloat16* grad_qkv, const BFloat16* qkv, const Rotation& r,
                                                  const float* rstd, float* partial, int64_t begin,
                                                  int64_t end) {
  normed_tokens_gradient_body(grad_qkv, qkv, r, rstd, partial, begin, end);
}

void check_positions(const at::Tensor& positions, int64_t max_position) {
  const auto* data = positions.const_data_ptr<int32_t>();
  for (int64_t n = 0; n < positions.numel(); ++n) {
    if (data[n] < 0 || data[n] >= max_position) {
      throw Error(format("rope: position {} at token {} is outside the table of {} positions", data[n], n,
                         max_position));
    }
  }
}

/// `q_weight`, `k_weight`: the norm's factors in fp32, which the caller keeps alive; undefined without a norm.
Rotation make_rotation(const AttentionShape& shape, const at::Tensor& positions, const RopeTable& table,
                       const at::Tensor& q_weight, const at::Tensor& k_weight, const QkNorm& norm) {
  check_positions(positions, table.cos.size(0));
  return {.heads = shape.heads,
          .kv_heads = shape.kv_heads,
          .head_dim = shape.head_dim,
          .cos = table.cos.const_data_ptr<float>(),
          .sin = table.sin.const_data_ptr<float>(),
          .positions = positions.const_data_ptr<int32_t>(),
          .q_weight = q_weight.defined() ? q_weight.const_data_ptr<float>() : nullptr,
          .k_weight = k_weight.defined() ? k_weight.const_data_ptr<float>() : nullptr,
          .q_span = norm.present() ? norm.q_span(shape) : 1,
          .k_span = norm.present() ? norm.k_span(shape) : 1,
          .eps = static_cast<float>(norm.eps)};
}

at::Tensor factors(const at::Tensor& weight, const QkNorm& norm) {
  return norm.present() ? norm_scale(weight, norm.offset, at::kFloat) : weight;
}

template <typename T>
void forward(const at::Tensor& qkv, const Rotation& rotation, const at::Tensor& out, float* rstd) {
  const T* source = qkv.const_data_ptr<T>();
  T* target = out.mutable_data_ptr<T>();
  at::parallel_for(0, qkv.size(0), rows_per_task(rotation.width()), [&](int64_t begin, int64_t end) {
    forward_tokens(source, rotation, target, rstd, begin, end);
  });
}

template <typename T>
void plain_backward(const at::Tensor& grad_qkv, const Rotation& rotation) {
  T* grad = grad_qkv.mutable_data_ptr<T>();
  at::parallel_for(0, grad_qkv.size(0), rows_per_task(rotation.width()),
                   [&](int64_t begin, int64_t end) { plain_tokens_gradient(grad, rotation, begin, end); });
}

/// partials: [parts, partial_width()], one row per `block` tokens.
template <typename T>
void normed_backward(const at::Tensor& grad_qkv, const at::Tensor& qkv, const Rotation& rotation,
                     const at::Tensor& rstd, const at::Tensor& partials, int64_t block) {
  T* grad = grad_qkv.mutable_data_ptr<T>();
  const T* source = qkv.const_data_ptr<T>();
  const auto* rstd_data = rstd.const_data_ptr<float>();
  auto* partial = partials.mutable_data_ptr<float>();
  const int64_t tokens = qkv.size(0);
  at::parallel_for(0, partials.size(0), 1, [&](int64_t first, int64_t last) {
    for (int64_t index = first; index < last; ++index) {
      normed_tokens_gradient(grad, source, rotation, rstd_data, partial + index * rotation.partial_width(),
                             index * block, std::min((index + 1) * block, tokens));
    }
  });
}

}  // namespace

void qk_norm_rope_forward(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& positions,
                          const RopeTable& table, const QkNorm& norm, const at::Tensor& out,
                          const at::Tensor& rstd) {
  const at::Tensor q_weight = factors(norm.q_weight, norm);
  const at::Tensor k_weight = factors(norm.k_weight, norm);
  const Rotation rotation = make_rotation(shape, positions, table, q_weight, k_weight, norm);
  float* rstd_data = norm.present() ? rstd.mutable_data_ptr<float>() : nullptr;
  if (qkv.scalar_type() == at::kFloat) {
    forward<float>(qkv, rotation, out, rstd_data);
  } else {
    forward<BFloat16>(qkv, rotation, out, rstd_data);
  }
}

void qk_norm_rope_backward(const at::Tensor& grad_qkv, const at::Tensor& qkv, const AttentionShape& shape,
                           const at::Tensor& positions, const RopeTable& table, const QkNorm& norm,
                           const at::Tensor& rstd, const at::Tensor& grad_q_weight,
                           const at::Tensor& grad_k_weight) {
  const at::Tensor q_weight = factors(norm.q_weight, norm);
  const at::Tensor k_weight = factors(norm.k_weight, norm);
  const Rotation rotation = make_rotation(shape, positions, table, q_weight, k_weight, norm);
  const bool is_fp32 = grad_qkv.scalar_type() == at::kFloat;
  if (!norm.present()) {
    is_fp32 ? plain_backward<float>(grad_qkv, rotation) : plain_backward<BFloat16>(grad_qkv, rotation);
    return;
  }
  const int64_t width = rotation.partial_width();
  const int64_t block = rows_per_partial(qkv.size(0));
  const at::Tensor partials = at::empty({(qkv.size(0) + block - 1) / block, width}, rstd.options());
  is_fp32 ? normed_backward<float>(grad_qkv, qkv, rotation, rstd, partials, block)
          : normed_backward<BFloat16>(grad_qkv, qkv, rotation, rstd, partials, block);
  const auto* partial = partials.const_data_ptr<float>();
  reduce_rows(partial, partials.size(0), rotation.q_width(), width, grad_q_weight.mutable_data_ptr<float>());
  reduce_rows(partial + rotation.q_width(), partials.size(0), rotation.k_width(), width,
              grad_k_weight.mutable_data_ptr<float>());
}

}  // namespace stepforge::cpu
