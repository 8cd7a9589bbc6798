// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/cpu/bf16_blocks.h"

#include <exception>
#include <vector>

#include <ATen/native/CPUBlas.h>

#include "stepforge/kernels/cpu/bf16_factor.h"
#include "stepforge/kernels/cpu/pair_product.h"
#include "stepforge/kernels/cpu/simd.h"

namespace stepforge::cpu {

void multiply_block(Bf16Blocks blocks, const BlockProduct& p) {
  namespace onednn = at::native::cpublas;
  if (blocks == Bf16Blocks::widened)
    return onednn::brgemm(p.rows, p.columns, p.depth, p.a_row, p.b_row, p.c_row, p.accumulate, p.a, p.b, p.c);
  if (blocks == Bf16Blocks::tiles)
    return onednn::brgemm(p.rows, p.columns, 2 * p.depth, 2 * p.a_row, p.b_row, p.c_row, p.accumulate,
                          reinterpret_cast<const BFloat16*>(p.a), reinterpret_cast<const BFloat16*>(p.b),
                          p.c);
  FetchAhead nothing;
  BlockProduct pairs = p;
  pairs.ahead = &nothing;
  pair_product()(pairs);
}

void release_blocks(Bf16Blocks blocks) {
  if (blocks != Bf16Blocks::pairs) at::native::cpublas::brgemm_release(blocks == Bf16Blocks::tiles);
}

namespace {

/// Whether oneDNN has products of blocks of fp32 here: it throws where it has none.
bool multiplies_fp32_blocks() {
  const std::vector<float> ones(kColumnUnit * kPackedColumns, 1.0F);
  float sums[kColumnUnit] = {};
  try {
    multiply_block(Bf16Blocks::widened, {.a = ones.data(),
                                         .a_row = kColumnUnit,
                                         .b = ones.data(),
                                         .b_row = kPackedColumns,
                                         .c = sums,
                                         .c_row = kColumnUnit,
                                         .rows = 1,
                                         .columns = kColumnUnit,
                                         .depth = kColumnUnit,
                                         .accumulate = false});
    release_blocks(Bf16Blocks::widened);
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

Bf16Blocks find_blocks() {
  if (at::native::cpublas::could_pack(at::kBFloat16)) return Bf16Blocks::tiles;
  if (pair_product() != nullptr) return Bf16Blocks::pairs;
  return multiplies_fp32_blocks() ? Bf16Blocks::widened : Bf16Blocks::none;
}

}  // namespace

Bf16Blocks bf16_blocks() {
  static const Bf16Blocks blocks = find_blocks();
  return blocks;
}

}  // namespace stepforge::cpu
