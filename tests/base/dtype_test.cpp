// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/dtype.h"

#include <gtest/gtest.h>

namespace stepforge::testing {
namespace {

constexpr DType kAll[] = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64,
                          DType::i32, DType::i16, DType::i8,  DType::u8,   DType::boolean};

TEST(DType, EveryNameIsReadBackAsItsType) {
  for (const DType dtype : kAll) {
    EXPECT_EQ(dtype_from_safetensors(safetensors_name(dtype)), dtype);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
    EXPECT_EQ(dtype_from_torch_name(torch_dtype_name(dtype)), dtype);
  }
}

TEST(DType, NamesAreThoseThatTheFormatsUse) {
  EXPECT_EQ(safetensors_name(DType::bf16), "BF16");
  EXPECT_EQ(safetensors_name(DType::boolean), "BOOL");
  EXPECT_EQ(dtype_name(DType::f32), "fp32");
  EXPECT_EQ(torch_dtype_name(DType::f16), "float16");
}

TEST(DType, UnknownNamesGiveNullopt) {
  EXPECT_EQ(dtype_from_safetensors("f32"), std::nullopt);
  EXPECT_EQ(dtype_from_safetensors("F8_E4M3"), std::nullopt);
  EXPECT_EQ(dtype_from_name(""), std::nullopt);
}

TEST(DType, BytesPerElement) {
  EXPECT_EQ(dtype_bytes(DType::f64), 8);
  EXPECT_EQ(dtype_bytes(DType::f32), 4);
  EXPECT_EQ(dtype_bytes(DType::bf16), 2);
  EXPECT_EQ(dtype_bytes(DType::boolean), 1);
}

}  // namespace
}  // namespace stepforge::testing
