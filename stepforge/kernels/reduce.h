// SPDX-License-Identifier: Apache-2.0
// Reductions whose bits depend on the values alone, not on threads, shards or the instruction set.
//
// A flat buffer is cut into chunks of 1,024 elements; a chunk's sum is formed in fp64 in one fixed order, and
// chunk sums are added in logical order. Shard boundaries fall on chunks, so ranks can exchange chunk sums
// and agree bit for bit. Results are scalars (kernels/scalars.h).
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace stepforge {

constexpr int64_t kReduceChunk = 1024;

enum class NormType : uint8_t {
  l1,   ///< sum of |x|
  l2,   ///< square root of the sum of squares
  l3,   ///< cube root of the sum of |x|^3
  inf,  ///< largest |x|
};

/// Joins `terms`, fp64, to `joined`, a scalar, one after the other: their sum, or for inf the largest. NaN if
/// any is NaN.
void join_norm_terms(NormType type, const at::Tensor& terms, const at::Tensor& joined);

/// norm = the norm from its joined terms: their square root for l2, cube root for l3. Scalars.
void norm_of_terms(NormType type, const at::Tensor& terms, const at::Tensor& norm);

/// Number of chunks of a buffer, the last one perhaps shorter.
constexpr int64_t reduce_chunks(int64_t elements) {
  return (elements + kReduceChunk - 1) / kReduceChunk;
}

/// partials[i] = the joined terms |x|^p (|x| for inf) of chunk i of `flat` (fp32, one-dimensional), in fp64.
/// NaN and infinity propagate. Throws Error unless partials is fp64 [reduce_chunks(flat.numel())].
void norm_terms_by_chunk(const at::Tensor& flat, NormType type, const at::Tensor& partials);

/// Whether a flat fp32 buffer holds no NaN and no infinity.
bool all_finite(const at::Tensor& flat);

/// sum, a scalar = the sum of a flat fp32 or fp64 tensor in fp64, element by element in order (loss sums).
void sum_in_order(const at::Tensor& flat, const at::Tensor& sum);

}  // namespace stepforge
