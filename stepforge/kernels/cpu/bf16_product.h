// SPDX-License-Identifier: Apache-2.0
// Products of large bf16 matrices, with results in bf16 or fp32. The right factor is packed in parts, so that each block product
// finds its operands in a cache.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "stepforge/kernels/cpu/bf16_factor.h"

namespace stepforge::cpu {

/// out = left right + summand
struct Bf16Product {
  ProductFactor left;   ///< [rows, depth]
  ProductFactor right;  ///< [depth, columns]
  at::Tensor out;       ///< [rows, columns], bf16 or fp32, contiguous
  at::Tensor summand;   ///< like `out`, which it may be; undefined: 0
};

/// How a processor multiplies blocks of bf16.
enum class Bf16Blocks : uint8_t {
  none,     ///< not at all: libtorch's products remain
  widened,  ///< as fp32 (AVX2, AVX-512): oneDNN's block products, inside libtorch
  pairs,    ///< two at a time (AVX512_BF16): pair_product.h
  tiles,    ///< in matrix tiles (AMX): oneDNN's again
};

/// Of this processor.
Bf16Blocks bf16_blocks();

/// Not for bf16_blocks() none. Sums are fp32 and rounded once. The order of an element's sum follows from the depth alone, so its
/// bits do not depend on the number of threads, nor on other rows and columns. Memory: bf16_product_words() in kernel_tiles.h.
void multiply_bf16(const Bf16Product& product);

}  // namespace stepforge::cpu
