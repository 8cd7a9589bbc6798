// SPDX-License-Identifier: Apache-2.0
// Products of blocks of bf16, packed in words (bf16_factor.h), by what the processor has.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "stepforge/kernels/cpu/block_gemm.h"

namespace stepforge::cpu {

/// How a processor multiplies blocks of bf16.
enum class Bf16Blocks : uint8_t {
  none,     ///< not at all: libtorch's products remain
  widened,  ///< as fp32 (AVX2, AVX-512): oneDNN's block products, inside libtorch
  pairs,    ///< two at a time (AVX512_BF16): pair_product.h
  tiles,    ///< in matrix tiles (AMX): oneDNN's again
};

/// Of this processor.
Bf16Blocks bf16_blocks();

/// The rows of the next block of a product of `rows` rows, where that number varies: one of few, since oneDNN makes and keeps a kernel for
/// each.
constexpr int64_t tile_rows(int64_t rows) {
  for (const int64_t most : {192, 64, 48, 32, 16})
    if (rows >= most) return most;
  return rows;
}

/// As BlockGemm::rows, of words: a [rows, depth], b [depth, columns].
void multiply_block(Bf16Blocks blocks, const BlockProduct& product);

/// After the last product of a thread: registers of tiles are state of the thread.
void release_blocks(Bf16Blocks blocks);

}  // namespace stepforge::cpu
