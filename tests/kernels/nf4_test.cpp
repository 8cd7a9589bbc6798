// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/nf4.h"

#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/kernels/kernel_list.h"
#include "stepforge/tensorfile/tensor_folder.h"
#include "tests/support/paths.h"
#include "tests/support/random_tensor.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

/// A tensor of the golden file.
at::Tensor golden(const std::string& name, at::ScalarType type) {
  const TensorFolder file({source_dir() / "tests/golden/nf4.safetensors"});
  const at::Tensor values = at::empty(file.find(name)->shape, at::device(at::kCPU).dtype(type));
  file.read(name, whole_slice(file.find(name)->shape),
            {static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes()});
  return values;
}

at::Tensor stored(int64_t n) {
  return at::zeros({WeightStorage{DType::u8, WeightCode::nf4}.bytes(n)}, at::kByte);
}

TEST(Nf4, CodesAndFactorsAreThoseOfBitsandbytes) {
  const at::Tensor values = golden("values", at::kFloat);
  const Nf4Weights made = nf4_parts(stored(values.numel()), values.numel());
  quantize_nf4(values, made);
  EXPECT_TRUE(at::equal(made.codes, golden("codes", at::kByte)));
  EXPECT_TRUE(at::equal(made.factors, golden("factors", at::kFloat)));
}

TEST(Nf4, ValuesAreThoseOfBitsandbytesInBothTypes) {
  const at::Tensor codes = golden("codes", at::kByte);
  const at::Tensor factors = golden("factors", at::kFloat);
  for (const auto& [name, type] :
       {std::pair("decoded", at::kFloat), std::pair("decoded_bf16", at::kBFloat16)}) {
    const at::Tensor expected = golden(name, type);
    const at::Tensor fused = at::empty_like(expected);
    dequantize_nf4(codes, factors, fused);
    EXPECT_TRUE(at::equal(fused, expected)) << name;
    const at::Tensor plain = at::empty_like(expected);
    reference::dequantize_nf4(codes, factors, plain);
    EXPECT_TRUE(at::equal(plain, expected)) << name;
  }
}

TEST(Nf4, ABlockWithANonfiniteWeightIsNan) {
  for (const double fault :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const at::Tensor values = random_tensor({3 * kCodeBlock}, 3);
    values.view({-1}).narrow(0, kCodeBlock + 5, 1).fill_(fault);
    const Nf4Weights made = nf4_parts(stored(values.numel()), values.numel());
    quantize_nf4(values, made);
    const at::Tensor decoded = at::empty({values.numel()}, at::kFloat);
    dequantize_nf4(made.codes, made.factors, decoded);
    const at::Tensor is_nan = decoded.isnan().view({3, kCodeBlock});
    EXPECT_EQ(is_nan.sum().item<int64_t>(), kCodeBlock);
    EXPECT_TRUE(is_nan.select(0, 1).all().item<bool>());
  }
}

TEST(Nf4, WeightsThatAreCodesStayAsTheyAre) {
  const at::Tensor values = random_tensor({640}, 3);
  const Nf4Weights first = nf4_parts(stored(640), 640);
  quantize_nf4(values, first);
  const at::Tensor decoded = at::empty({640}, at::kFloat);
  dequantize_nf4(first.codes, first.factors, decoded);
  const Nf4Weights second = nf4_parts(stored(640), 640);
  quantize_nf4(decoded, second);
  EXPECT_TRUE(at::equal(first.codes, second.codes));
  EXPECT_TRUE(at::equal(first.factors, second.factors));
}

TEST(Nf4, FourAndAHalfBitsAreKeptOfEachWeight) {
  EXPECT_EQ((WeightStorage{DType::u8, WeightCode::nf4}.bytes(1024)), 1024 * 9 / 16);
  EXPECT_EQ((WeightStorage{DType::bf16}.bytes(1024)), 2048);
}

TEST(Nf4, PartsOfBlocksAreRefused) {
  EXPECT_CONTAINS(
      message_of<Error>([] { quantize_nf4(random_tensor({65}, 1), nf4_parts(stored(128), 128)); }), "65");
}

}  // namespace
}  // namespace stepforge::testing
