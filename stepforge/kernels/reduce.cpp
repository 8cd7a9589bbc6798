// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/reduce.h"

#include <algorithm>

#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/kernel_table.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

void join_norm_terms(NormType type, const at::Tensor& terms, const at::Tensor& joined) {
  check_tensor(terms, "norm terms", terms.sizes(), at::kDouble);
  check_scalar(joined, "joined norm terms");
  pick(&KernelTable::join_norm_terms, joined)(type, terms, joined);
}

void norm_of_terms(NormType type, const at::Tensor& terms, const at::Tensor& norm) {
  check_scalar(terms, "norm terms");
  check_scalar(norm, "norm");
  pick(&KernelTable::norm_of_terms, norm)(type, terms, norm);
}

void norm_terms_by_chunk(const at::Tensor& flat, NormType type, const at::Tensor& partials) {
  check_tensor(flat, "norm buffer", {flat.numel()}, at::kFloat);
  check_tensor(partials, "norm partials", {reduce_chunks(flat.numel())}, at::kDouble);
  pick(&KernelTable::norm_terms_by_chunk, flat)(flat, type, partials);
}

bool all_finite(const at::Tensor& flat) {
  check_tensor(flat, "all_finite buffer", {flat.numel()}, at::kFloat);
  return pick(&KernelTable::all_finite, flat)(flat);
}

void sum_in_order(const at::Tensor& flat, const at::Tensor& sum) {
  check_shape(flat, "sum_in_order buffer", {flat.numel()});
  check_scalar(sum, "sum_in_order sum");
  if (flat.scalar_type() != at::kFloat && flat.scalar_type() != at::kDouble) {
    throw Error(
        format("sum_in_order buffer: expected fp32 or fp64, got {}", c10::toString(flat.scalar_type())));
  }
  pick(&KernelTable::sum_in_order, flat)(flat, sum);
}

void reference::join_norm_terms(NormType type, const at::Tensor& terms, const at::Tensor& joined) {
  const at::Tensor all = at::cat({joined.view({1}), terms.view({-1})});
  joined.copy_(type == NormType::inf ? all.max() : all.sum());
}

void reference::norm_of_terms(NormType type, const at::Tensor& terms, const at::Tensor& norm) {
  norm.copy_(type == NormType::l2 ? terms.sqrt() : type == NormType::l3 ? terms.pow(1.0 / 3.0) : terms);
}

void reference::norm_terms_by_chunk(const at::Tensor& flat, NormType type, const at::Tensor& partials) {
  const auto terms = [&](int64_t begin, int64_t end, int64_t chunk) {
    const at::Tensor values = flat.slice(0, begin, end).view({-1, chunk}).to(at::kDouble).abs();
    partials.slice(0, begin / kReduceChunk, reduce_chunks(end))
        .copy_(type == NormType::inf  ? values.amax(1)
               : type == NormType::l1 ? values.sum(1)
               : type == NormType::l2 ? values.square().sum(1)
                                      : values.pow(3).sum(1));
  };
  const int64_t whole = flat.numel() / kReduceChunk * kReduceChunk;
  for_each_slice(0, whole, [&](int64_t begin, int64_t end) { terms(begin, end, kReduceChunk); });
  if (whole < flat.numel()) terms(whole, flat.numel(), flat.numel() - whole);
}

bool reference::all_finite(const at::Tensor& flat) {
  const at::Tensor finite = at::ones({}, flat.options().dtype(at::kBool));
  for_each_slice(0, flat.numel(), [&](int64_t begin, int64_t end) {
    finite.logical_and_(at::isfinite(flat.slice(0, begin, end)).all());
  });
  return finite.item<bool>();
}

void reference::sum_in_order(const at::Tensor& flat, const at::Tensor& sum) {
  sum.copy_(flat.sum(at::kDouble));
}

}  // namespace stepforge
