// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/block_join.h"
#include "stepforge/cuda/elements.h"
#include "stepforge/cuda/swiglu.h"

namespace stepforge::cuda {

namespace {

constexpr int kGatedThreads = 256;

/// e^x that is finite. NaN stays NaN.
__device__ float bounded_exp(float x) {
  return expf(x > 87.0F ? 87.0F : x);
}

/// a(gate) and its derivative.
struct Activated {
  float value;
  float slope;
};

/// gate * sigmoid(alpha * gate)
__device__ Activated silu(float gate, float alpha) {
  const float inverse = 1.0F + bounded_exp(-alpha * gate);
  const float share = 1.0F / inverse;
  const float value = gate / inverse;
  return {value, share + alpha * value * (1.0F - share)};
}

struct Silu {
  __device__ Activated operator()(float gate) const { return silu(gate, 1.0F); }
};

struct GeluTanh {
  __device__ Activated operator()(float gate) const {
    constexpr float kRoot = 0.797884561F;  // sqrt(2 / pi)
    constexpr float kCube = 0.044715F;
    // (1 + tanh(u)) / 2 = 1 / (1 + e^(-2 u))
    const float exponential = bounded_exp(-2.0F * kRoot * (gate + kCube * gate * gate * gate));
    const float share = 1.0F / (1.0F + exponential);
    const float inner = 2.0F * kRoot * (1.0F + 3.0F * kCube * gate * gate);
    return {gate * share, share + gate * share * (exponential * share) * inner};
  }
};

/// Gate and up of some elements, or their gradients.
template <int kCount>
struct GateAndUp {
  float gate[kCount];
  float up[kCount];
};

/// Columns [gate | up].
template <typename Activation>
struct Halves {
  Activation activation;

  template <int kCount, typename T>
  __device__ GateAndUp<kCount> read(const T* row, int64_t width, int64_t column) const {
    GateAndUp<kCount> in;
    load(row + column, in.gate);
    load(row + width + column, in.up);
    return in;
  }
  template <int kCount, typename T>
  __device__ void write(const GateAndUp<kCount>& out, T* row, int64_t width, int64_t column) const {
    store(out.gate, row + column);
    store(out.up, row + width + column);
  }
  __device__ Activated activate(float gate) const { return activation(gate); }
  __device__ float factor(float up) const { return up; }
  __device__ bool gate_is_free(float) const { return true; }
  __device__ bool up_is_free(float) const { return true; }
};

/// Columns of gate and up in turn, with limits.
struct Clamped {
  float limit;
  float alpha;

  template <int kCount, typename T>
  __device__ GateAndUp<kCount> read(const T* row, int64_t, int64_t column) const {
    float pairs[2][kCount];
    load(row + 2 * column, pairs[0]);
    load(row + 2 * column + kCount, pairs[1]);
    GateAndUp<kCount> in;
    for (int i = 0; i < kCount; ++i) {
      in.gate[i] = pairs[2 * i / kCount][2 * i % kCount];
      in.up[i] = pairs[(2 * i + 1) / kCount][(2 * i + 1) % kCount];
    }
    return in;
  }
  template <int kCount, typename T>
  __device__ void write(const GateAndUp<kCount>& out, T* row, int64_t, int64_t column) const {
    float pairs[2][kCount];
    for (int i = 0; i < kCount; ++i) {
      pairs[2 * i / kCount][2 * i % kCount] = out.gate[i];
      pairs[(2 * i + 1) / kCount][(2 * i + 1) % kCount] = out.up[i];
    }
    store(pairs[0], row + 2 * column);
    store(pairs[1], row + 2 * column + kCount);
  }
  __device__ Activated activate(float raw) const { return silu(raw > limit ? limit : raw, alpha); }
  __device__ float factor(float raw) const {
    const float below = raw > limit ? limit : raw;
    return (below < -limit ? -limit : below) + 1.0F;
  }
  __device__ bool gate_is_free(float raw) const { return !(raw > limit); }
  __device__ bool up_is_free(float raw) const { return !(raw > limit || raw < -limit); }
};

/// The rows of a call.
struct Rows {
  int64_t count;
  int64_t width;
  const float* weights;
  const int32_t* slots;

  __device__ float weight(int64_t row) const { return weights == nullptr ? 1.0F : weights[slots[row]]; }
};

template <typename T, int kCount, typename Form>
__global__ void __launch_bounds__(kGatedThreads)
    forward_rows(const T* gate_up, Rows rows, Form form, T* out) {
  for (int64_t n = blockIdx.x; n < rows.count; n += gridDim.x) {
    const float weight = rows.weight(n);
    for (int64_t f = threadIdx.x * kCount; f < rows.width; f += blockDim.x * kCount) {
      const auto in = form.template read<kCount>(gate_up + 2 * n * rows.width, rows.width, f);
      float values[kCount];
      for (int i = 0; i < kCount; ++i)
        values[i] = form.activate(in.gate[i]).value * form.factor(in.up[i]) * weight;
      store(values, out + n * rows.width + f);
    }
  }
}

template <typename T, int kCount, typename Form>
__global__ void __launch_bounds__(kGatedThreads)
    backward_rows(const T* grad_out, const T* gate_up, Rows rows, Form form, T* grad_gate_up,
                  float* grad_weights) {
  __shared__ WarpValues<float> of_warps;
  for (int64_t n = blockIdx.x; n < rows.count; n += gridDim.x) {
    const float weight = rows.weight(n);
    float sum = 0.0F;
    for (int64_t f = threadIdx.x * kCount; f < rows.width; f += blockDim.x * kCount) {
      float grad[kCount];
      load(grad_out + n * rows.width + f, grad);
      const auto in = form.template read<kCount>(gate_up + 2 * n * rows.width, rows.width, f);
      GateAndUp<kCount> result;
      for (int i = 0; i < kCount; ++i) {
        const Activated activated = form.activate(in.gate[i]);
        const float factor = form.factor(in.up[i]);
        sum += grad[i] * activated.value * factor;
        const float weighted = grad[i] * weight;
        result.gate[i] = form.gate_is_free(in.gate[i]) ? weighted * factor * activated.slope : 0.0F;
        result.up[i] = form.up_is_free(in.up[i]) ? weighted * activated.value : 0.0F;
      }
      form.write(result, grad_gate_up + 2 * n * rows.width, rows.width, f);
    }
    if (grad_weights == nullptr) continue;
    sum = join_in_block(sum, Sum(), 0.0F, of_warps);
    if (threadIdx.x == 0) grad_weights[rows.slots[n]] = sum;
  }
}

/// Calls run(form) with the form of the rows.
template <typename Run>
void with_form(const GatedRows& rows, const Run& run) {
  if (rows.clamped) {
    run(Clamped{static_cast<float>(rows.limits.limit), static_cast<float>(rows.limits.alpha)});
  } else if (rows.activation == Activation::silu) {
    run(Halves<Silu>());
  } else {
    run(Halves<GeluTanh>());
  }
}

Rows rows_of(const GatedRows& rows) {
  return {rows.rows, rows.width, rows.weights, rows.slots};
}

}  // namespace

void gated_forward(DType type, const void* gate_up, const GatedRows& rows, void* out, Stream stream) {
  with_elements(type, rows.width, {gate_up, out}, [&]<typename T, int kCount>() {
    with_form(rows, [&](auto form) {
      const auto kernel = forward_rows<T, kCount, decltype(form)>;
      LAUNCH(kernel, blocks_for(rows.rows), threads_for(rows.width / kCount, kGatedThreads), stream,
             static_cast<const T*>(gate_up), rows_of(rows), form, static_cast<T*>(out));
    });
  });
}

void gated_backward(DType type, const void* grad_out, const void* gate_up, const GatedRows& rows,
                    void* grad_gate_up, float* grad_weights, Stream stream) {
  float* const to_weights = rows.weights == nullptr ? nullptr : grad_weights;
  with_elements(type, rows.width, {grad_out, gate_up, grad_gate_up}, [&]<typename T, int kCount>() {
    with_form(rows, [&](auto form) {
      const auto kernel = backward_rows<T, kCount, decltype(form)>;
      LAUNCH(kernel, blocks_for(rows.rows), threads_for(rows.width / kCount, kGatedThreads), stream,
             static_cast<const T*>(grad_out), static_cast<const T*>(gate_up), rows_of(rows), form,
             static_cast<T*>(grad_gate_up), to_weights);
    });
  });
}

}  // namespace stepforge::cuda
