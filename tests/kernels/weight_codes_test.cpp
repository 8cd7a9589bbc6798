// SPDX-License-Identifier: Apache-2.0
// What all codes of weights have in common.
#include "stepforge/kernels/weight_codes.h"

#include <limits>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "tests/support/random_tensor.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

at::Tensor coded_copy(WeightCode code, const at::Tensor& values) {
  const at::Tensor stored = at::zeros({kind_of(code).bytes(values.numel())}, at::kByte);
  quantize_weights(code, values, stored);
  return stored;
}

at::Tensor decoded_copy(WeightCode code, const at::Tensor& stored, int64_t n) {
  const at::Tensor values = at::empty({n}, at::kFloat);
  dequantize_weights(code, stored, values);
  return values;
}

TEST(WeightCodes, ABlockWithANonfiniteWeightIsNan) {
  for (const WeightCodeKind& kind : kWeightCodes) {
    for (const double fault :
         {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
      const at::Tensor values = random_tensor({3 * kCodeBlock}, 3);
      values.narrow(0, kCodeBlock + 5, 1).fill_(fault);
      const at::Tensor is_nan = decoded_copy(kind.code, coded_copy(kind.code, values), values.numel())
                                    .isnan()
                                    .view({3, kCodeBlock});
      EXPECT_EQ(is_nan.sum().item<int64_t>(), kCodeBlock) << kind.name;
      EXPECT_TRUE(is_nan.select(0, 1).all().item<bool>()) << kind.name;
    }
  }
}

TEST(WeightCodes, ABlockOfZerosIsExact) {
  for (const WeightCodeKind& kind : kWeightCodes) {
    const at::Tensor zeros = at::zeros({2 * kCodeBlock}, at::kFloat);
    const at::Tensor stored = coded_copy(kind.code, zeros);
    EXPECT_TRUE(at::equal(decoded_copy(kind.code, stored, zeros.numel()), zeros)) << kind.name;
    EXPECT_TRUE(at::equal(coded_weights(kind.code, stored).factors, at::zeros({2}, at::kFloat))) << kind.name;
  }
}

TEST(WeightCodes, WeightsThatAreStoredInPartsAreThoseOfTheWhole) {
  for (const WeightCodeKind& kind : kWeightCodes) {
    const at::Tensor values = random_tensor({10 * kCodeBlock}, 4);
    const at::Tensor whole = coded_copy(kind.code, values);
    const at::Tensor parts = at::zeros_like(whole);
    for (const auto& [begin, end] : {std::pair(3, 10), std::pair(0, 3)})
      quantize_weights(kind.code, values.narrow(0, begin * kCodeBlock, (end - begin) * kCodeBlock), parts,
                       begin * kCodeBlock);
    EXPECT_TRUE(at::equal(parts, whole)) << kind.name;
  }
}

TEST(WeightCodes, PartsOfBlocksAreRefused) {
  for (const WeightCodeKind& kind : kWeightCodes) {
    const at::Tensor stored = at::zeros({kind.bytes(128)}, at::kByte);
    EXPECT_CONTAINS(message_of<Error>([&] { quantize_weights(kind.code, random_tensor({65}, 1), stored); }),
                    "65");
    EXPECT_CONTAINS(
        message_of<Error>([&] { quantize_weights(kind.code, random_tensor({64}, 1), stored, 32); }), "32");
  }
}

}  // namespace
}  // namespace stepforge::testing
