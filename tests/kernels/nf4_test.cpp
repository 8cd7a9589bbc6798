// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/nf4.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "stepforge/kernels/kernel_list.h"
#include "stepforge/kernels/weight_codes.h"
#include "tests/kernels/nf4_golden.h"
#include "tests/support/random_tensor.h"

namespace stepforge::testing {
namespace {

at::Tensor stored_nf4(int64_t n) {
  return at::zeros({kind_of(WeightCode::nf4).bytes(n)}, at::kByte);
}

TEST(Nf4, CodesAndFactorsAreThoseOfBitsandbytes) {
  const at::Tensor values = nf4_golden("values", at::kFloat);
  const at::Tensor made = stored_nf4(values.numel());
  quantize_weights(WeightCode::nf4, values, made);
  EXPECT_TRUE(at::equal(coded_weights(WeightCode::nf4, made).codes, nf4_golden("codes", at::kByte)));
  EXPECT_TRUE(at::equal(coded_weights(WeightCode::nf4, made).factors, nf4_golden("factors", at::kFloat)));
}

TEST(Nf4, ValuesAreThoseOfBitsandbytesInBothTypes) {
  const at::Tensor codes = nf4_golden("codes", at::kByte);
  const at::Tensor factors = nf4_golden("factors", at::kFloat);
  for (const auto& [name, type] :
       {std::pair("decoded", at::kFloat), std::pair("decoded_bf16", at::kBFloat16)}) {
    const at::Tensor expected = nf4_golden(name, type);
    const at::Tensor fused = at::empty_like(expected);
    dequantize_nf4(codes, factors, fused);
    EXPECT_TRUE(at::equal(fused, expected)) << name;
    const at::Tensor plain = at::empty_like(expected);
    reference::dequantize_nf4(codes, factors, plain);
    EXPECT_TRUE(at::equal(plain, expected)) << name;
  }
}

TEST(Nf4, WeightsThatAreCodesStayAsTheyAre) {
  const at::Tensor first = stored_nf4(640);
  quantize_weights(WeightCode::nf4, random_tensor({640}, 3), first);
  const at::Tensor decoded = at::empty({640}, at::kFloat);
  dequantize_weights(WeightCode::nf4, first, decoded);
  const at::Tensor second = stored_nf4(640);
  quantize_weights(WeightCode::nf4, decoded, second);
  EXPECT_TRUE(at::equal(first, second));
}

TEST(Nf4, FourAndAHalfBitsAreKeptOfEachWeight) {
  EXPECT_EQ((WeightStorage{DType::u8, WeightCode::nf4}.bytes(1024)), 1024 * 9 / 16);
  EXPECT_EQ((WeightStorage{DType::u8, WeightCode::nf4, true}.bytes(1024)), 512 + 16);
  EXPECT_EQ((WeightStorage{DType::bf16}.bytes(1024)), 2048);
}

}  // namespace
}  // namespace stepforge::testing
