// SPDX-License-Identifier: Apache-2.0
// Products of large bf16 matrices, with results in bf16 or fp32. The right factor is packed in parts, so that each block product
// finds its operands in a cache.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "stepforge/kernels/cpu/bf16_blocks.h"
#include "stepforge/kernels/cpu/bf16_factor.h"

namespace stepforge::cpu {

/// out = left right + summand
struct Bf16Product {
  ProductFactor left;         ///< [rows, depth]
  ProductFactor right;        ///< [depth, columns]
  at::Tensor out;             ///< [rows, columns], bf16 or fp32, contiguous
  at::Tensor summand;         ///< like `out`, which it may be; undefined: 0
  bool non_temporal = false;  ///< out is fp32, and read again only when no cache has it any more
};

/// Not for bf16_blocks() none. Sums are fp32 and rounded once. The order of an element's sum follows from the depth alone, so its
/// bits do not depend on the number of threads, nor on other rows and columns. Memory: bf16_product_words() in kernel_tiles.h.
void multiply_bf16(const Bf16Product& product);

/// The same on the calling thread alone, for a part of the result. Both factors are packed on the way, the right one once for each panel of
/// columns (again for every kPackedRows rows if its depth is above 4 kPackedDepth words), the left one, unless it is used in place, once
/// if it has at most kPackedRows rows and kPackedDepth words. Memory: 0.7 MiB of the thread's stack.
void multiply_bf16_alone(const Bf16Product& product, Range rows, Range columns);

}  // namespace stepforge::cpu
