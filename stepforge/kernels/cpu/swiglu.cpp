// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/swiglu.h"

#include <algorithm>

#include <ATen/Parallel.h>

#include "stepforge/kernels/cpu/simd.h"
#include "stepforge/kernels/kernel_list.h"

namespace stepforge::cpu {
namespace {

constexpr float kGeluRoot = 0.797884561F;  // sqrt(2 / pi)
constexpr float kGeluCube = 0.044715F;

/// e^(-2 u) of gelu_tanh, whose share (1 + tanh(u)) / 2 is 1 / (1 + e^(-2 u)).
STEPFORGE_INLINE float gelu_exponential(float g) {
  return exp_approx(-2.0F * kGeluRoot * (g + kGeluCube * g * g * g));
}

template <typename T>
STEPFORGE_INLINE void gelu_forward_row_body(const T* gate, const T* up, T* out, int64_t width) {
#pragma omp simd
  for (int64_t f = 0; f < width; ++f) {
    const float g = load(gate + f);
    store(out + f, g / (1.0F + gelu_exponential(g)) * load(up + f));
  }
}

template <typename T>
STEPFORGE_INLINE void gelu_backward_row_body(const T* grad_out, const T* gate, const T* up, T* grad_gate,
                                             T* grad_up, int64_t width) {
#pragma omp simd
  for (int64_t f = 0; f < width; ++f) {
    const float grad = load(grad_out + f);
    const float g = load(gate + f);
    const float u = load(up + f);
    const float exponential = gelu_exponential(g);
    const float share = 1.0F / (1.0F + exponential);
    const float inner = 2.0F * kGeluRoot * (1.0F + 3.0F * kGeluCube * g * g);
    store(grad_gate + f, grad * u * (share + g * share * (exponential * share) * inner));
    store(grad_up + f, grad * g * share);
  }
}

template <typename T>
STEPFORGE_INLINE void forward_row_body(const T* gate, const T* up, T* out, int64_t width) {
#pragma omp simd
  for (int64_t f = 0; f < width; ++f) {
    const float g = load(gate + f);
    store(out + f, g / (1.0F + exp_approx(-g)) * load(up + f));
  }
}

template <typename T>
STEPFORGE_INLINE void backward_row_body(const T* grad_out, const T* gate, const T* up, T* grad_gate,
                                        T* grad_up, int64_t width) {
#pragma omp simd
  for (int64_t f = 0; f < width; ++f) {
    const float grad = load(grad_out + f);
    const float g = load(gate + f);
    const float u = load(up + f);
    const float sigmoid = 1.0F / (1.0F + exp_approx(-g));
    const float silu = g * sigmoid;
    store(grad_gate + f, grad * u * (sigmoid + silu * (1.0F - sigmoid)));
    store(grad_up + f, grad * silu);
  }
}

STEPFORGE_SIMD_CLONES void forward_row(const float* gate, const float* up, float* out, int64_t width) {
  forward_row_body(gate, up, out, width);
}
STEPFORGE_SIMD_CLONES void forward_row(const BFloat16* gate, const BFloat16* up, BFloat16* out,
                                       int64_t width) {
  forward_row_body(gate, up, out, width);
}
STEPFORGE_SIMD_CLONES void backward_row(const float* grad_out, const float* gate, const float* up,
                                        float* grad_gate, float* grad_up, int64_t width) {
  backward_row_body(grad_out, gate, up, grad_gate, grad_up, width);
}
STEPFORGE_SIMD_CLONES void backward_row(const BFloat16* grad_out, const BFloat16* gate, const BFloat16* up,
                                        BFloat16* grad_gate, BFloat16* grad_up, int64_t width) {
  backward_row_body(grad_out, gate, up, grad_gate, grad_up, width);
}

STEPFORGE_SIMD_CLONES void gelu_forward_row(const float* gate, const float* up, float* out, int64_t width) {
  gelu_forward_row_body(gate, up, out, width);
}
STEPFORGE_SIMD_CLONES void gelu_forward_row(const BFloat16* gate, const BFloat16* up, BFloat16* out,
                                            int64_t width) {
  gelu_forward_row_body(gate, up, out, width);
}
STEPFORGE_SIMD_CLONES void gelu_backward_row(const float* grad_out, const float* gate, const float* up,
                                             float* grad_gate, float* grad_up, int64_t width) {
  gelu_backward_row_body(grad_out, gate, up, grad_gate, grad_up, width);
}
STEPFORGE_SIMD_CLONES void gelu_backward_row(const BFloat16* grad_out, const BFloat16* gate,
                                             const BFloat16* up, BFloat16* grad_gate, BFloat16* grad_up,
                                             int64_t width) {
  gelu_backward_row_body(grad_out, gate, up, grad_gate, grad_up, width);
}

// Rows with a weight.

template <typename T>
STEPFORGE_INLINE void weighted_row_body(const T* gate, const T* up, float weight, T* out, int64_t width) {
#pragma omp simd
  for (int64_t f = 0; f < width; ++f) {
    const float g = load(gate + f);
    store(out + f, g / (1.0F + exp_approx(-g)) * load(up + f) * weight);
  }
}

/// Returns the gradient of the weight.
template <typename T>
STEPFORGE_INLINE float weighted_row_gradient_body(const T* grad_out, const T* gate, const T* up, float weight,
                                                  T* grad_gate, T* grad_up, int64_t width) {
  float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
  for (int64_t f = 0; f < width; ++f) {
    const float grad = load(grad_out + f);
    const float g = load(gate + f);
    const float u = load(up + f);
    const float inverse = 1.0F + exp_approx(-g);
    const float sigmoid = 1.0F / inverse;
    const float silu = g / inverse;  // the bits of the forward
    sum += grad * silu * u;
    const float weighted = grad * weight;
    store(grad_gate + f, weighted * u * (sigmoid + silu * (1.0F - sigmoid)));
    store(grad_up + f, weighted * silu);
  }
  return sum;
}

STEPFORGE_SIMD_CLONES void weighted_row(const float* gate, const float* up, float weight, float* out,
                                        int64_t width) {
  weighted_row_body(gate, up, weight, out, width);
}
STEPFORGE_SIMD_CLONES void weighted_row(const BFloat16* gate, const BFloat16* up, float weight, BFloat16* out,
                                        int64_t width) {
  weighted_row_body(gate, up, weight, out, width);
}
STEPFORGE_SIMD_CLONES float weighted_row_gradient(const float* grad_out, const float* gate, const float* up,
                                                  float weight, float* grad_gate, float* grad_up,
                                                  int64_t width) {
  return weighted_row_gradient_body(grad_out, gate, up, weight, grad_gate, grad_up, width);
}
STEPFORGE_SIMD_CLONES float weighted_row_gradient(const BFloat16* grad_out, const BFloat16* gate,
                                                  const BFloat16* up, float weight, BFloat16* grad_gate,
                                                  BFloat16* grad_up, int64_t width) {
  return weighted_row_gradient_body(grad_out, gate, up, weight, grad_gate, grad_up, width);
}

// Rows with a weight and limits.

struct ClampConstants {
  float limit;
  float alpha;
};

template <typename T>
STEPFORGE_INLINE void clamped_row_body(const T* in, float weight, ClampConstants c, T* out, int64_t width) {
#pragma omp simd
  for (int64_t f = 0; f < width; ++f) {
    const float raw_gate = load(in + 2 * f);
    const float raw_up = load(in + 2 * f + 1);
    const float gate = raw_gate > c.limit ? c.limit : raw_gate;
    const float below = raw_up > c.limit ? c.limit : raw_up;
    const float up = below < -c.limit ? -c.limit : below;
    store(out + f, gate / (1.0F + exp_approx(-c.alpha * gate)) * (up + 1.0F) * weight);
  }
}

/// Returns the gradient of the weight.
template <typename T>
STEPFORGE_INLINE float clamped_row_gradient_body(const T* grad_out, const T* in, float weight,
                                                 ClampConstants c, T* grad_in, int64_t width) {
  float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
  for (int64_t f = 0; f < width; ++f) {
    const float grad = load(grad_out + f);
    const float raw_gate = load(in + 2 * f);
    const float raw_up = load(in + 2 * f + 1);
    const float gate = raw_gate > c.limit ? c.limit : raw_gate;
    const float below = raw_up > c.limit ? c.limit : raw_up;
    const float up = below < -c.limit ? -c.limit : below;
    const float inverse = 1.0F + exp_approx(-c.alpha * gate);
    const float sigmoid = 1.0F / inverse;
    const float glu = gate / inverse;  // the bits of the forward
    sum += grad * glu * (up + 1.0F);
    const float weighted = grad * weight;
    const float to_gate = weighted * (up + 1.0F) * (sigmoid + c.alpha * glu * (1.0F - sigmoid));
    const float to_up = weighted * glu;
    store(grad_in + 2 * f, raw_gate > c.limit ? 0.0F : to_gate);
    store(grad_in + 2 * f + 1, raw_up > c.limit || raw_up < -c.limit ? 0.0F : to_up);
  }
  return sum;
}

STEPFORGE_SIMD_CLONES void clamped_row(const float* in, float weight, ClampConstants c, float* out,
                                       int64_t width) {
  clamped_row_body(in, weight, c, out, width);
}
STEPFORGE_SIMD_CLONES void clamped_row(const BFloat16* in, float weight, ClampConstants c, BFloat16* out,
                                       int64_t width) {
  clamped_row_body(in, weight, c, out, width);
}
STEPFORGE_SIMD_CLONES float clamped_row_gradient(const float* grad_out, const float* in, float weight,
                                                 ClampConstants c, float* grad_in, int64_t width) {
  return clamped_row_gradient_body(grad_out, in, weight, c, grad_in, width);
}
STEPFORGE_SIMD_CLONES float clamped_row_gradient(const BFloat16* grad_out, const BFloat16* in, float weight,
                                                 ClampConstants c, BFloat16* grad_in, int64_t width) {
  return clamped_row_gradient_body(grad_out, in, weight, c, grad_in, width);
}

ClampConstants constants_of(const ClampedSwiglu& activation) {
  return {static_cast<float>(activation.limit), static_cast<float>(activation.alpha)};
}

/// The weights of rows, if they have some.
struct WeightsOfRows {
  const float* weight;
  const int32_t* slot;

  explicit WeightsOfRows(const GatedRows& rows)
      : weight(rows.weights.defined() ? rows.weights.const_data_ptr<float>() : nullptr),
        slot(rows.weights.defined() ? rows.slots.const_data_ptr<int32_t>() : nullptr) {}
};

/// visit(n) for all rows, on several threads.
template <typename Visit>
void for_each_gated_row(const at::Tensor& rows, const Visit& visit) {
  at::parallel_for(0, rows.size(0), rows_per_task(rows.size(1)), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) visit(n);
  });
}

template <typename T>
void forward(const at::Tensor& gate_up, const GatedRows& rows, const at::Tensor& out) {
  const int64_t width = out.size(1);
  const T* const in = gate_up.const_data_ptr<T>();
  T* const target = out.mutable_data_ptr<T>();
  const auto [weight, slot] = WeightsOfRows(rows);
  const auto gate = [&](int64_t n) { return in + 2 * n * width; };
  const auto up = [&](int64_t n) { return in + (2 * n + 1) * width; };
  const auto to = [&](int64_t n) { return target + n * width; };
  if (rows.clamped) {
    const ClampConstants constants = constants_of(*rows.clamped);
    for_each_gated_row(out,
                       [&](int64_t n) { clamped_row(gate(n), weight[slot[n]], constants, to(n), width); });
  } else if (weight != nullptr) {
    for_each_gated_row(out, [&](int64_t n) { weighted_row(gate(n), up(n), weight[slot[n]], to(n), width); });
  } else if (rows.activation == Activation::silu) {
    for_each_gated_row(out, [&](int64_t n) { forward_row(gate(n), up(n), to(n), width); });
  } else {
    for_each_gated_row(out, [&](int64_t n) { gelu_forward_row(gate(n), up(n), to(n), width); });
  }
}

template <typename T>
void backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const GatedRows& rows,
              const at::Tensor& grad_gate_up, const at::Tensor& grad_weights) {
  const int64_t width = grad_out.size(1);
  const T* const grad = grad_out.const_data_ptr<T>();
  const T* const in = gate_up.const_data_ptr<T>();
  T* const target = grad_gate_up.mutable_data_ptr<T>();
  const auto [weight, slot] = WeightsOfRows(rows);
  if (weight == nullptr) {
    for_each_gated_row(grad_out, [&](int64_t n) {
      const int64_t gate = 2 * n * width;
      if (rows.activation == Activation::silu) {
        backward_row(grad + n * width, in + gate, in + gate + width, target + gate, target + gate + width,
                     width);
      } else {
        gelu_backward_row(grad + n * width, in + gate, in + gate + width, target + gate,
                          target + gate + width, width);
      }
    });
    return;
  }
  float* const to_weight = grad_weights.mutable_data_ptr<float>();
  const ClampConstants constants = constants_of(rows.clamped.value_or(ClampedSwiglu{}));
  for_each_gated_row(grad_out, [&](int64_t n) {
    const int64_t gate = 2 * n * width;
    to_weight[slot[n]] =
        rows.clamped ? clamped_row_gradient(grad + n * width, in + gate, weight[slot[n]], constants,
                                            target + gate, width)
                     : weighted_row_gradient(grad + n * width, in + gate, in + gate + width, weight[slot[n]],
                                             target + gate, target + gate + width, width);
  });
}

}  // namespace

void gated_forward(const at::Tensor& gate_up, const GatedRows& rows, const at::Tensor& out) {
  if (gate_up.scalar_type() == at::kFloat) {
    forward<float>(gate_up, rows, out);
  } else {
    forward<BFloat16>(gate_up, rows, out);
  }
}

void gated_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const GatedRows& rows,
                    const at::Tensor& grad_gate_up, const at::Tensor& grad_weights) {
  if (gate_up.scalar_type() == at::kFloat) {
    backward<float>(grad_out, gate_up, rows, grad_gate_up, grad_weights);
  } else {
    backward<BFloat16>(grad_out, gate_up, rows, grad_gate_up, grad_weights);
  }
}

}  // namespace stepforge::cpu
