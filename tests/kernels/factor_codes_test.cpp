// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/factor_codes.h"

#include <limits>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/weight_code.h"
#include "stepforge/kernels/dynamic_code.h"
#include "stepforge/kernels/kernel_list.h"
#include "tests/kernels/nf4_golden.h"
#include "tests/support/random_tensor.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

/// What all codes stand for.
at::Tensor decoded_factors(const FactorCodes& made) {
  const at::Tensor factors = at::empty({made.codes.numel()}, at::kFloat);
  dequantize_factors(made.codes, made.scales, {}, factors);
  return factors;
}

TEST(FactorCodes, DynamicNumbersAreThoseOfBitsandbytes) {
  for (const auto& [name, is_signed] :
       {std::pair("dynamic_code", true), std::pair("dynamic_code_unsigned", false)}) {
    std::array<float, 256> code = dynamic_code(is_signed);
    EXPECT_TRUE(at::equal(at::from_blob(code.data(), {256}, at::kFloat), nf4_golden(name, at::kFloat)))
        << name;
  }
}

TEST(FactorCodes, AreThoseOfBitsandbytes) {
  const FactorCodes made = quantize_factors(nf4_golden("double_factors", at::kFloat));
  EXPECT_TRUE(at::equal(made.codes, nf4_golden("double_codes", at::kByte)));
  EXPECT_TRUE(at::equal(made.scales, at::cat({nf4_golden("double_offset", at::kFloat),
                                              nf4_golden("double_scales", at::kFloat)})));
}

TEST(FactorCodes, StandForTheFactorsOfBitsandbytes) {
  const at::Tensor codes = nf4_golden("double_codes", at::kByte);
  const at::Tensor scales =
      at::cat({nf4_golden("double_offset", at::kFloat), nf4_golden("double_scales", at::kFloat)});
  const at::Tensor expected = nf4_golden("double_decoded", at::kFloat);
  EXPECT_TRUE(at::equal(decoded_factors({codes, scales}), expected));
  const at::Tensor plain = at::empty_like(expected);
  reference::dequantize_factors(codes, scales, {}, plain);
  EXPECT_TRUE(at::equal(plain, expected));
}

TEST(FactorCodes, OfAPartHaveTheScalesOfTheirBlocksInTheTensor) {
  const int64_t n = 2 * kFactorBlock + 88;
  const FactorCodes made = quantize_factors(random_tensor({n}, 1).abs());
  const at::Tensor all = decoded_factors(made);
  // Columns [2, 7) of 12 in rows 1 to 49.
  const auto of_part = [](const at::Tensor& whole) {
    return whole.view({50, 12}).narrow(0, 1, 49).narrow(1, 2, 5).contiguous().view({-1});
  };
  const FactorPart part{.first = 14, .width = 5, .stride = 12};
  const at::Tensor factors = at::empty({49 * 5}, at::kFloat);
  dequantize_factors(of_part(made.codes), made.scales, part, factors);
  EXPECT_TRUE(at::equal(factors, of_part(all)));
  const at::Tensor plain = at::empty_like(factors);
  reference::dequantize_factors(of_part(made.codes), made.scales, part, plain);
  EXPECT_TRUE(at::equal(plain, factors));
}

TEST(FactorCodes, OfEqualFactorsAreExact) {
  const at::Tensor factors = at::full({300}, 0.3F, at::kFloat);
  EXPECT_TRUE(at::equal(decoded_factors(quantize_factors(factors)), factors));
}

TEST(FactorCodes, OfANonfiniteFactorAreAllNan) {
  const at::Tensor factors = random_tensor({300}, 2).abs();
  factors.narrow(0, 17, 1).fill_(std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(decoded_factors(quantize_factors(factors)).isnan().all().item<bool>());
}

TEST(FactorCodes, BehindTheLastScaleAreRefused) {
  const FactorCodes made = quantize_factors(random_tensor({256}, 3).abs());
  const at::Tensor out = at::empty({256}, at::kFloat);
  EXPECT_CONTAINS(message_of<Error>([&] { dequantize_factors(made.codes, made.scales, {.first = 1}, out); }),
                  "256");
}

}  // namespace
}  // namespace stepforge::testing
