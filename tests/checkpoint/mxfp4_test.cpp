// SPDX-License-Identifier: Apache-2.0
#include "stepforge/checkpoint/mxfp4.h"

#include <cmath>

#include <gtest/gtest.h>

#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kExperts = 2;
constexpr int64_t kIn = 64;
constexpr int64_t kOut = 3;

uint8_t block_byte(int64_t index) {
  return static_cast<uint8_t>(index * 37 + 11);
}
uint8_t scale_byte(int64_t index) {
  return static_cast<uint8_t>(120 + index);
}

/// Of the element [e, i, o] of the tensor.
float expected_value(int64_t e, int64_t i, int64_t o) {
  constexpr float kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const int64_t group = (e * kOut + o) * 2 + i / 32;
  const unsigned pair = block_byte(group * 16 + i % 32 / 2);
  const unsigned bits = i % 2 == 0 ? pair & 15U : pair >> 4U;
  const float magnitude = kMagnitudes[bits & 7U] * std::exp2(static_cast<float>(scale_byte(group) - 127));
  return bits >= 8 ? -magnitude : magnitude;
}

class Mxfp4 : public ::testing::Test {
 protected:
  TensorFolder write(const std::vector<int64_t>& blocks_shape, const std::vector<int64_t>& scales_shape) {
    const auto path = folder_ / "model.safetensors";
    SafetensorsWriter writer(path,
                             {{"w_blocks", DType::u8, blocks_shape}, {"w_scales", DType::u8, scales_shape}});
    std::vector<uint8_t> bytes;
    for (int64_t i = 0; i < whole_slice(blocks_shape).elements(); ++i) bytes.push_back(block_byte(i));
    writer.write("w_blocks", std::as_bytes(std::span(bytes)));
    bytes.clear();
    for (int64_t i = 0; i < whole_slice(scales_shape).elements(); ++i) bytes.push_back(scale_byte(i));
    writer.write("w_scales", std::as_bytes(std::span(bytes)));
    writer.finish();
    return TensorFolder({path});
  }

  TempFolder folder_;
};

TEST_F(Mxfp4, IsReadTransposedFromAnyElementOfAnySlice) {
  const TensorFolder files = write({kExperts, kOut, 2, 16}, {kExperts, kOut, 2});
  ASSERT_TRUE(is_mxfp4(files, "w"));
  EXPECT_EQ(fault_of_mxfp4(files, "w", {kExperts, kIn, kOut}), "");
  Mxfp4Reader reader(files, "w");
  EXPECT_EQ(reader.shape(), (std::vector<int64_t>{kExperts, kIn, kOut}));
  const TensorSlice slice{{0, 5, 1}, {2, 40, 2}};
  const int64_t elements = slice.elements();
  for (const int64_t begin : {int64_t{0}, int64_t{1}, int64_t{79}, int64_t{101}}) {
    std::vector<float> values(static_cast<size_t>(elements - begin));
    reader.read(slice, begin, values);
    for (int64_t p = begin; p < elements; ++p) {
      const float expected = expected_value(p / 80, 5 + p / 2 % 40, 1 + p % 2);
      ASSERT_EQ(values[static_cast<size_t>(p - begin)], expected) << begin << " " << p;
    }
  }
}

TEST_F(Mxfp4, OfAnotherShapeIsNamed) {
  const TensorFolder files = write({kExperts, kOut, 2, 16}, {kExperts, kOut, 2});
  EXPECT_CONTAINS(fault_of_mxfp4(files, "w", {kExperts, kIn, kOut + 1}), "expected [2, 4, 2, 16]");
  EXPECT_CONTAINS(fault_of_mxfp4(files, "w", {kExperts, kIn + 1, kOut}), "32 divides in");
}

}  // namespace
}  // namespace stepforge::testing
