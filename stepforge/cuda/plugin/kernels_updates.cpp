// SPDX-License-Identifier: Apache-2.0
// Rows of kernels/adamw.h and kernels/lion.h.
#include <cstddef>

#include "stepforge/cuda/adamw.h"
#include "stepforge/cuda/plugin/arguments.h"
#include "stepforge/cuda/plugin/kernels.h"
#include "stepforge/cuda/plugin/launch.h"

namespace stepforge::cuda_plugin {

namespace {

cuda::UpdateScalars scalars_of(const UpdateScalars& scalars) {
  return {.finite = read<double>(scalars.finite),
          .number = read<double>(scalars.number),
          .lr_factor = read<double>(scalars.lr_factor),
          .grad_scale = read<double>(scalars.grad_scale)};
}

/// From element `begin` on.
void* write_from(const at::Tensor& tensor, int64_t begin) {
  return static_cast<std::byte*>(write_any(tensor)) + begin * static_cast<int64_t>(tensor.element_size());
}

}  // namespace

void adamw_update(const at::Tensor& parameter, const at::Tensor& grad, const at::Tensor& first_moment,
                  const at::Tensor& second_moment, int64_t begin, int64_t end, const AdamWOptions& options,
                  const UpdateScalars& scalars) {
  const cuda::UpdateOptions numbers{.lr = options.lr,
                                    .beta1 = options.beta1,
                                    .beta2 = options.beta2,
                                    .eps = options.eps,
                                    .weight_decay = options.weight_decay};
  on_stream_of(parameter, [&](cuda::Stream stream) {
    cuda::adamw_update(write<float>(parameter) + begin, read<float>(grad) + begin, dtype_of(first_moment),
                       write_from(first_moment, begin), write_from(second_moment, begin), end - begin,
                       numbers, scalars_of(scalars), stream);
  });
}

void lion_update(const at::Tensor& parameter, const at::Tensor& grad, const at::Tensor& momentum,
                 const LionOptions& options, const UpdateScalars& scalars) {
  const cuda::UpdateOptions numbers{.lr = options.lr,
                                    .beta1 = options.beta1,
                                    .beta2 = options.beta2,
                                    .eps = 0.0,
                                    .weight_decay = options.weight_decay};
  on_stream_of(parameter, [&](cuda::Stream stream) {
    cuda::lion_update(write<float>(parameter), read<float>(grad), write<float>(momentum), parameter.numel(),
                      numbers, scalars_of(scalars), stream);
  });
}

}  // namespace stepforge::cuda_plugin
