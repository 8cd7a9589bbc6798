// SPDX-License-Identifier: Apache-2.0
// kernels/reduce.h and kernels/scalars.h on a GPU. Sums are formed in fp64 in the same order, so bits are those of the CPU, except of l3,
// whose last bits may differ.
#pragma once

#include <cstdint>

#include "stepforge/base/dtype.h"
#include "stepforge/cuda/stream.h"

namespace stepforge::cuda {

/// NormType of kernels/reduce.h, in the same order.
enum class NormType : uint8_t { l1, l2, l3, inf };

/// flat: fp32 [elements]. partials: [elements / 1024, rounded up], written: the terms |x|^p of each chunk of 1,024.
void norm_terms_by_chunk(const float* flat, int64_t elements, NormType type, double* partials, Stream stream);

/// Joins `terms`, [count], to the number `joined`, one after the other.
void join_norm_terms(NormType type, const double* terms, int64_t count, double* joined, Stream stream);

/// norm = the norm from its joined terms.
void norm_of_terms(NormType type, const double* terms, double* norm, Stream stream);

/// finite: written: 1 if `flat`, fp32 [elements], holds no NaN and no infinity, else 0.
void all_finite(const float* flat, int64_t elements, double* finite, Stream stream);

/// sum: written: that of `flat`, fp32 or fp64 [elements], one element after the other.
void sum_in_order(DType type, const void* flat, int64_t elements, double* sum, Stream stream);

// Numbers of a step: each pointer is to one fp64 number.

/// weight = 1 / count, or 0 if count is 0.
void reciprocal_or_zero(const double* count, double* weight, Stream stream);

/// mean = the sum of `values`, [elements], in order, / count, or 0 if count is 0. It may be written over the count.
void mean_in_order(const double* values, int64_t elements, const double* count, double* mean, Stream stream);

/// As in torch.nn.utils.clip_grad_norm_; 1 if max_norm is 0, and for a norm that is NaN.
void clip_coefficient(const double* norm, double max_norm, double* coefficient, Stream stream);

/// flag = 1 if both are finite, else 0.
void flag_if_finite(const double* first, const double* second, double* flag, Stream stream);

}  // namespace stepforge::cuda
