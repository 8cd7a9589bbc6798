// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/adamw.h"
#include "stepforge/cuda/elements.h"

namespace stepforge::cuda {

namespace {

/// In the shared memory of a block, because powers in fp64 are too dear for each thread.
struct AdamWCoefficients {
  float decay;      ///< 1 - lr * weight_decay
  float step_size;  ///< lr / (1 - beta1^t)
  float inverse_root_correction;
  float grad_scale;
};

/// The betas and 1 - betas of a call, made on the host.
struct Betas {
  float first;
  float second;
  float rest1;
  float rest2;
};

Betas betas_of(const UpdateOptions& options) {
  return {static_cast<float>(options.beta1), static_cast<float>(options.beta2),
          static_cast<float>(1.0 - options.beta1), static_cast<float>(1.0 - options.beta2)};
}

__device__ AdamWCoefficients coefficients_of(const UpdateOptions& options, const UpdateScalars& scalars) {
  const double lr = options.lr * *scalars.lr_factor;
  const double correction1 = 1.0 - pow(options.beta1, *scalars.number);
  const double correction2 = 1.0 - pow(options.beta2, *scalars.number);
  return {static_cast<float>(1.0 - lr * options.weight_decay), static_cast<float>(lr / correction1),
          static_cast<float>(1.0 / sqrt(correction2)), static_cast<float>(*scalars.grad_scale)};
}

constexpr int kUpdateThreads = 256;

template <typename Moment, int kCount>
__global__ void __launch_bounds__(kUpdateThreads)
    adamw_elements(float* parameter, const float* grad, Moment* first, Moment* second, int64_t elements,
                   UpdateOptions options, Betas beta, UpdateScalars scalars) {
  if (*scalars.finite == 0.0) return;
  __shared__ SharedArray<AdamWCoefficients, 1> of_block;
  if (threadIdx.x == 0) of_block[0] = coefficients_of(options, scalars);
  __syncthreads();
  const AdamWCoefficients c = of_block[0];
  const auto eps = static_cast<float>(options.eps);
  for (int64_t i = thread_of_grid() * kCount; i < elements; i += threads_of_grid() * kCount) {
    float p[kCount];
    float g[kCount];
    float m[kCount];
    float v[kCount];
    load(parameter + i, p);
    load(grad + i, g);
    load(first + i, m);
    load(second + i, v);
    for (int k = 0; k < kCount; ++k) {
      const float scaled = g[k] * c.grad_scale;
      m[k] = beta.first * m[k] + beta.rest1 * scaled;
      v[k] = beta.second * v[k] + beta.rest2 * scaled * scaled;
      const float denominator = sqrtf(v[k]) * c.inverse_root_correction + eps;
      p[k] = p[k] * c.decay - c.step_size * (m[k] / denominator);
    }
    store(m, first + i);
    store(v, second + i);
    store(p, parameter + i);
  }
}

template <int kCount>
__global__ void __launch_bounds__(kUpdateThreads)
    lion_elements(float* parameter, const float* grad, float* momentum, int64_t elements,
                  UpdateOptions options, Betas beta, UpdateScalars scalars) {
  if (*scalars.finite == 0.0) return;
  const double exact_lr = options.lr * *scalars.lr_factor;
  const auto lr = static_cast<float>(exact_lr);
  const auto decay = static_cast<float>(1.0 - exact_lr * options.weight_decay);
  const auto grad_scale = static_cast<float>(*scalars.grad_scale);
  for (int64_t i = thread_of_grid() * kCount; i < elements; i += threads_of_grid() * kCount) {
    float p[kCount];
    float g[kCount];
    float m[kCount];
    load(parameter + i, p);
    load(grad + i, g);
    load(momentum + i, m);
    for (int k = 0; k < kCount; ++k) {
      const float scaled = g[k] * grad_scale;
      const float direction = beta.first * m[k] + beta.rest1 * scaled;
      p[k] = p[k] * decay - (direction > 0.0F ? lr : direction < 0.0F ? -lr : direction);
      m[k] = beta.second * m[k] + beta.rest2 * scaled;
    }
    store(m, momentum + i);
    store(p, parameter + i);
  }
}

/// Calls run<kCount>(begin, end) for elements [begin, end), kCount at a time: all of them, or the last ones singly.
template <typename Run>
void for_flat(int64_t elements, std::initializer_list<const void*> addresses, const Run& run) {
  constexpr int kCount = kVector<float>;
  const int64_t singly_from = are_aligned(addresses) ? elements / kCount * kCount : 0;
  if (singly_from > 0) run.template operator()<kCount>(int64_t{0}, singly_from);
  if (singly_from < elements) run.template operator()<1>(singly_from, elements);
}

template <typename Moment>
void update_moments(float* parameter, const float* grad, Moment* first, Moment* second, int64_t elements,
                    const UpdateOptions& options, const UpdateScalars& scalars, Stream stream) {
  for_flat(elements, {parameter, grad, first, second}, [&]<int kCount>(int64_t begin, int64_t end) {
    const auto kernel = adamw_elements<Moment, kCount>;
    LAUNCH(kernel, blocks_for((end - begin) / kCount, kUpdateThreads), kUpdateThreads, stream,
           parameter + begin, grad + begin, first + begin, second + begin, end - begin, options,
           betas_of(options), scalars);
  });
}

}  // namespace

void adamw_update(float* parameter, const float* grad, DType moments, void* first_moment, void* second_moment,
                  int64_t elements, const UpdateOptions& options, const UpdateScalars& scalars,
                  Stream stream) {
  if (moments == DType::bf16) {
    update_moments(parameter, grad, static_cast<BFloat16*>(first_moment),
                   static_cast<BFloat16*>(second_moment), elements, options, scalars, stream);
  } else {
    update_moments(parameter, grad, static_cast<float*>(first_moment), static_cast<float*>(second_moment),
                   elements, options, scalars, stream);
  }
}

void lion_update(float* parameter, const float* grad, float* momentum, int64_t elements,
                 const UpdateOptions& options, const UpdateScalars& scalars, Stream stream) {
  for_flat(elements, {parameter, grad, momentum}, [&]<int kCount>(int64_t begin, int64_t end) {
    const auto kernel = lion_elements<kCount>;
    LAUNCH(kernel, blocks_for((end - begin) / kCount, kUpdateThreads), kUpdateThreads, stream,
           parameter + begin, grad + begin, momentum + begin, end - begin, options, betas_of(options),
           scalars);
  });
}

}  // namespace stepforge::cuda
