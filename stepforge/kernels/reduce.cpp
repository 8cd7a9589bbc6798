// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/reduce.h"

#include <algorithm>

#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/cpu/kernels.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

void join_norm_terms(NormType type, const at::Tensor& terms, const at::Tensor& joined) {
  check_tensor(terms, "norm terms", terms.sizes(), at::kDouble);
  check_scalar(joined, "joined norm terms");
  if (joined.is_cpu()) {
    cpu::join_norm_terms(type, terms, joined);
  } else {
    join_norm_terms_reference(type, terms, joined);
  }
}

void norm_of_terms(NormType type, const at::Tensor& terms, const at::Tensor& norm) {
  check_scalar(terms, "norm terms");
  check_scalar(norm, "norm");
  if (norm.is_cpu()) {
    cpu::norm_of_terms(type, terms, norm);
  } else {
    norm_of_terms_reference(type, terms, norm);
  }
}

void norm_terms_by_chunk(const at::Tensor& flat, NormType type, const at::Tensor& partials) {
  check_tensor(flat, "norm buffer", {flat.numel()}, at::kFloat);
  check_tensor(partials, "norm partials", {reduce_chunks(flat.numel())}, at::kDouble);
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

void sum_in_order(const at::Tensor& flat, const at::Tensor& sum) {
  check_shape(flat, "sum_in_order buffer", {flat.numel()});
  check_scalar(sum, "sum_in_order sum");
  if (flat.scalar_type() != at::kFloat && flat.scalar_type() != at::kDouble) {
    throw Error(
        format("sum_in_order buffer: expected fp32 or fp64, got {}", c10::toString(flat.scalar_type())));
  }
  if (flat.is_cpu()) {
    cpu::sum_in_order(flat, sum);
  } else {
    sum_in_order_reference(flat, sum);
  }
}

void join_norm_terms_reference(NormType type, const at::Tensor& terms, const at::Tensor& joined) {
  const at::Tensor all = at::cat({joined.view({1}), terms.view({-1})});
  joined.copy_(type == NormType::inf ? all.max() : all.sum());
}

void norm_of_terms_reference(NormType type, const at::Tensor& terms, const at::Tensor& norm) {
  norm.copy_(type == NormType::l2 ? terms.sqrt() : type == NormType::l3 ? terms.pow(1.0 / 3.0) : terms);
}

void norm_terms_by_chunk_reference(const at::Tensor& flat, NormType type, const at::Tensor& partials) {
  for (int64_t chunk = 0; chunk < partials.numel(); ++chunk) {
    const int64_t begin = chunk * kReduceChunk;
    const int64_t end = std::min(begin + kReduceChunk, flat.numel());
    const at::Tensor values = flat.slice(0, begin, end).to(at::kDouble).abs();
    partials.select(0, chunk).copy_(type == NormType::inf  ? values.max()
                                    : type == NormType::l1 ? values.sum()
                                    : type == NormType::l2 ? values.square().sum()
                                                           : values.pow(3).sum());
  }
}

bool all_finite_reference(const at::Tensor& flat) {
  return at::isfinite(flat).all().item<bool>();
}

void sum_in_order_reference(const at::Tensor& flat, const at::Tensor& sum) {
  sum.copy_(flat.sum(at::kDouble));
}

}  // namespace stepforge
