// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/int8.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "stepforge/kernels/kernel_list.h"
#include "stepforge/kernels/weight_codes.h"
#include "tests/support/random_tensor.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kInt8Blocks = 300;  // more than a task has

/// Blocks of all sizes from denormal to the largest numbers; one of zeros, one whose quotients are halfway between codes.
at::Tensor int8_weights() {
  const at::Tensor values = random_tensor({kInt8Blocks, kCodeBlock}, 5);
  auto* value = values.mutable_data_ptr<float>();
  for (int64_t block = 0; block < kInt8Blocks; ++block)
    for (int64_t i = 0; i < kCodeBlock; ++i)
      value[block * kCodeBlock + i] *= std::ldexp(1.0F, static_cast<int>(block) - 149 - 23);
  values.select(0, 3).zero_();
  for (int64_t i = 0; i < kCodeBlock; ++i) value[7 * kCodeBlock + i] = static_cast<float>(i) - 31.5F;
  value[7 * kCodeBlock] = 127.0F;
  value[8 * kCodeBlock] = std::numeric_limits<float>::max();
  value[9 * kCodeBlock] = -std::numeric_limits<float>::denorm_min();
  return values.view({-1});
}

at::Tensor int8_stored(const at::Tensor& values) {
  const at::Tensor stored = at::zeros({kind_of(WeightCode::int8).bytes(values.numel())}, at::kByte);
  quantize_weights(WeightCode::int8, values, stored);
  return stored;
}

TEST(Int8, CodesAreQuotientsRoundedToNearestEven) {
  const at::Tensor values = int8_weights();
  const CodedWeights made = coded_weights(WeightCode::int8, int8_stored(values));
  const auto* value = values.const_data_ptr<float>();
  const auto* codes = made.codes.const_data_ptr<uint8_t>();
  const auto* factors = made.factors.const_data_ptr<float>();
  for (int64_t block = 0; block < kInt8Blocks; ++block) {
    const float* of_block = value + block * kCodeBlock;
    float largest = 0.0F;
    for (int64_t i = 0; i < kCodeBlock; ++i) largest = std::max(largest, std::abs(of_block[i]));
    const float factor = largest / 127.0F;
    EXPECT_EQ(factors[block], factor) << block;
    for (int64_t i = 0; i < kCodeBlock; ++i) {
      const float quotient = factor == 0.0F ? 0.0F : std::nearbyint(of_block[i] / factor);
      ASSERT_EQ(static_cast<float>(static_cast<int8_t>(codes[block * kCodeBlock + i])),
                std::clamp(quotient, -127.0F, 127.0F))
          << block << " " << i;
    }
  }
}

TEST(Int8, TiesGoToTheEvenCode) {
  const at::Tensor values = int8_weights().narrow(0, 7 * kCodeBlock, kCodeBlock);
  const CodedWeights made = coded_weights(WeightCode::int8, int8_stored(values));
  EXPECT_EQ(made.factors.item<float>(), 1.0F);
  const auto* codes = reinterpret_cast<const int8_t*>(made.codes.const_data_ptr<uint8_t>());
  const std::vector<int> of_some(codes, codes + 5);
  EXPECT_EQ(of_some, (std::vector<int>{127, -30, -30, -28, -28})) << "of -30.5, -29.5, -28.5 and -27.5";
}

TEST(Int8, ValuesAreProductsInBothTypesAndBothKernels) {
  const at::Tensor stored = int8_stored(int8_weights());
  const CodedWeights weights = coded_weights(WeightCode::int8, stored);
  const int64_t n = kInt8Blocks * kCodeBlock;
  at::Tensor products = at::empty({n}, at::kFloat);
  for (int64_t i = 0; i < n; ++i)
    products.mutable_data_ptr<float>()[i] =
        static_cast<float>(static_cast<int8_t>(weights.codes.const_data_ptr<uint8_t>()[i])) *
        weights.factors.const_data_ptr<float>()[i / kCodeBlock];
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor fused = at::zeros({n}, type);
    dequantize_weights(WeightCode::int8, stored, fused);
    EXPECT_TRUE(at::equal(fused, products.to(type))) << c10::toString(type);
    const at::Tensor plain = at::zeros({n}, type);
    reference::dequantize_int8(weights.codes, weights.factors, plain);
    EXPECT_TRUE(at::equal(plain, products.to(type))) << c10::toString(type);
  }
}

TEST(Int8, AWeightIsOffByHalfAFactorAtMost) {
  const at::Tensor values = random_tensor({640}, 3);
  const at::Tensor stored = int8_stored(values);
  const at::Tensor decoded = at::empty({640}, at::kFloat);
  dequantize_weights(WeightCode::int8, stored, decoded);
  const at::Tensor factors = coded_weights(WeightCode::int8, stored).factors.view({10, 1}).to(at::kDouble);
  const at::Tensor fault = (values.to(at::kDouble) - decoded.to(at::kDouble)).abs().view({10, kCodeBlock});
  EXPECT_LE((fault / factors).max().item<double>(), 0.5 + 1e-4);
}

TEST(Int8, EightAndAHalfBitsAreKeptOfEachWeight) {
  EXPECT_EQ((WeightStorage{DType::u8, WeightCode::int8}.bytes(1024)), 1024 + 1024 / 64 * 4);
}

}  // namespace
}  // namespace stepforge::testing
