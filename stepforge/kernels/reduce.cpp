// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/reduce.h"

#include <cmath>
#include <vector>

#include <ATen/ops/isfinite.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/cpu/kernels.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

double join_norm_terms(NormType type, double left, double right) {
  if (type != NormType::inf) return left + right;
  return right > left || std::isnan(right) ? right : left;
}

double norm_of_terms(NormType type, double terms) {
  switch (type) {
    case NormType::l2:
      return std::sqrt(terms);
    case NormType::l3:
      return std::cbrt(terms);
    default:
      return terms;
  }
}

void norm_terms_by_chunk(const at::Tensor& flat, NormType type, std::span<double> partials) {
  check_tensor(flat, "norm buffer", {flat.numel()}, at::kFloat);
  if (static_cast<int64_t>(partials.size()) != reduce_chunks(flat.numel())) {
    throw Error(format("norm: {} elements have {} chunks, but partials has {} entries", flat.numel(),
                       reduce_chunks(flat.numel()), partials.size()));
  }
  if (flat.is_cpu()) {
    cpu::norm_terms_by_chunk(flat, type, partials);
  } else {
    norm_terms_by_chunk_reference(flat, type, partials);
  }
}

bool all_finite(const at::Tensor& flat) {
  check_tensor(flat, "all_finite buffer", {flat.numel()}, at::kFloat);
  return flat.is_cpu() ? cpu::all_finite(flat) : all_finite_reference(flat);
}

double sum_in_order(const at::Tensor& flat) {
  const at::Tensor host = flat.to(at::kDouble).cpu().contiguous();
  double sum = 0.0;
  for (int64_t i = 0; i < host.numel(); ++i) sum += host.const_data_ptr<double>()[i];
  return sum;
}

void norm_terms_by_chunk_reference(const at::Tensor& flat, NormType type, std::span<double> partials) {
  for (size_t chunk = 0; chunk < partials.size(); ++chunk) {
    const int64_t begin = static_cast<int64_t>(chunk) * kReduceChunk;
    const int64_t end = std::min(begin + kReduceChunk, flat.numel());
    const at::Tensor values = flat.slice(0, begin, end).to(at::kDouble).abs();
    const at::Tensor terms = type == NormType::inf  ? values.max()
                             : type == NormType::l1 ? values.sum()
                             : type == NormType::l2 ? values.square().sum()
                                                    : values.pow(3).sum();
    partials[chunk] = terms.item<double>();
  }
}

bool all_finite_reference(const at::Tensor& flat) {
  return at::isfinite(flat).all().item<bool>();
}

}  // namespace stepforge
