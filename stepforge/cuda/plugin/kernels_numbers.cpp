// SPDX-License-Identifier: Apache-2.0
// Rows of kernels/reduce.h and kernels/scalars.h.
#include <ATen/ops/empty.h>

#include "stepforge/cuda/plugin/arguments.h"
#include "stepforge/cuda/plugin/kernels.h"
#include "stepforge/cuda/plugin/launch.h"
#include "stepforge/cuda/reduce.h"

namespace stepforge::cuda_plugin {

namespace {

static_assert(static_cast<int>(NormType::l1) == static_cast<int>(cuda::NormType::l1) &&
              static_cast<int>(NormType::l2) == static_cast<int>(cuda::NormType::l2) &&
              static_cast<int>(NormType::l3) == static_cast<int>(cuda::NormType::l3) &&
              static_cast<int>(NormType::inf) == static_cast<int>(cuda::NormType::inf));

cuda::NormType norm_of(NormType type) {
  return static_cast<cuda::NormType>(type);
}

}  // namespace

void join_norm_terms(NormType type, const at::Tensor& terms, const at::Tensor& joined) {
  on_stream_of(joined, [&](cuda::Stream stream) {
    cuda::join_norm_terms(norm_of(type), read<double>(terms), terms.numel(), write<double>(joined), stream);
  });
}

void norm_of_terms(NormType type, const at::Tensor& terms, const at::Tensor& norm) {
  on_stream_of(norm, [&](cuda::Stream stream) {
    cuda::norm_of_terms(norm_of(type), read<double>(terms), write<double>(norm), stream);
  });
}

void norm_terms_by_chunk(const at::Tensor& flat, NormType type, const at::Tensor& partials) {
  on_stream_of(flat, [&](cuda::Stream stream) {
    cuda::norm_terms_by_chunk(read<float>(flat), flat.numel(), norm_of(type), write<double>(partials),
                              stream);
  });
}

bool all_finite(const at::Tensor& flat) {
  const at::Tensor finite = at::empty({}, flat.options().dtype(at::kDouble));
  on_stream_of(flat, [&](cuda::Stream stream) {
    cuda::all_finite(read<float>(flat), flat.numel(), write<double>(finite), stream);
  });
  return finite.item<double>() != 0.0;
}

void sum_in_order(const at::Tensor& flat, const at::Tensor& sum) {
  on_stream_of(flat, [&](cuda::Stream stream) {
    cuda::sum_in_order(dtype_of(flat), read_any(flat), flat.numel(), write<double>(sum), stream);
  });
}

void reciprocal_or_zero(const at::Tensor& count, const at::Tensor& weight) {
  on_stream_of(weight, [&](cuda::Stream stream) {
    cuda::reciprocal_or_zero(read<double>(count), write<double>(weight), stream);
  });
}

void mean_in_order(const at::Tensor& values, const at::Tensor& count, const at::Tensor& mean) {
  on_stream_of(mean, [&](cuda::Stream stream) {
    cuda::mean_in_order(read<double>(values), values.numel(), read<double>(count), write<double>(mean),
                        stream);
  });
}

void clip_coefficient(const at::Tensor& norm, double max_norm, const at::Tensor& coefficient) {
  on_stream_of(norm, [&](cuda::Stream stream) {
    cuda::clip_coefficient(read<double>(norm), max_norm, write<double>(coefficient), stream);
  });
}

void flag_if_finite(const at::Tensor& first, const at::Tensor& second, const at::Tensor& flag) {
  on_stream_of(flag, [&](cuda::Stream stream) {
    cuda::flag_if_finite(read<double>(first), read<double>(second), write<double>(flag), stream);
  });
}

}  // namespace stepforge::cuda_plugin
