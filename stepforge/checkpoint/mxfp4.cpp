// SPDX-License-Identifier: Apache-2.0
#include "stepforge/checkpoint/mxfp4.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>

#include "stepforge/base/format.h"

namespace stepforge {

namespace {

constexpr int64_t kBlockBytes = 16;
constexpr int64_t kBlockValues = 2 * kBlockBytes;
constexpr int kScaleBias = 127;
/// E2M1: a sign, two bits of exponent, one of mantissa.
constexpr std::array<float, 16> kValues = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                           -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

}  // namespace

std::string mxfp4_blocks(const std::string& name) {
  return name + "_blocks";
}

std::string mxfp4_scales(const std::string& name) {
  return name + "_scales";
}

bool is_mxfp4(const TensorFolder& folder, const std::string& name) {
  return folder.find(name) == nullptr && folder.find(mxfp4_blocks(name)) != nullptr;
}

std::string fault_of_mxfp4(const TensorFolder& folder, const std::string& name,
                           const std::vector<int64_t>& shape) {
  const StoredTensor* blocks = folder.find(mxfp4_blocks(name));
  const StoredTensor* scales = folder.find(mxfp4_scales(name));
  if (scales == nullptr) return format("is MXFP4 without {}", mxfp4_scales(name));
  if (blocks->dtype != DType::u8 || scales->dtype != DType::u8)
    return format("is MXFP4 of {} and {}, expected U8", safetensors_name(blocks->dtype),
                  safetensors_name(scales->dtype));
  if (shape.size() != 3 || shape[1] % kBlockValues != 0)
    return format("is MXFP4, but the model's tensor is {}: expected [experts, in, out], where {} divides in",
                  shape_text(shape), kBlockValues);
  const std::vector<int64_t> of_scales = {shape[0], shape[2], shape[1] / kBlockValues};
  std::vector<int64_t> of_blocks = of_scales;
  of_blocks.push_back(kBlockBytes);
  if (blocks->shape == of_blocks && scales->shape == of_scales) return "";
  return format("is MXFP4 with blocks {} and scales {}; expected {} and {}", shape_text(blocks->shape),
                shape_text(scales->shape), shape_text(of_blocks), shape_text(of_scales));
}

Mxfp4Reader::Mxfp4Reader(const TensorFolder& folder, std::string name)
    : folder_(folder), name_(std::move(name)) {
  const std::vector<int64_t>& blocks = folder.find(mxfp4_blocks(name_))->shape;
  shape_ = {blocks.at(0), blocks.at(2) * kBlockValues, blocks.at(1)};
}

void Mxfp4Reader::load(int64_t expert) {
  if (expert == expert_) return;
  const int64_t out = shape_[2];
  const int64_t in_blocks = shape_[1] / kBlockValues;
  std::vector<std::byte> scales(static_cast<size_t>(out * in_blocks));
  std::vector<std::byte> blocks(scales.size() * kBlockBytes);
  folder_.read(mxfp4_scales(name_), {{expert, 0, 0}, {1, out, in_blocks}}, scales);
  folder_.read(mxfp4_blocks(name_), {{expert, 0, 0, 0}, {1, out, in_blocks, kBlockBytes}}, blocks);
  values_.resize(static_cast<size_t>(shape_[1] * out));
  for (int64_t block = 0; block < out * in_blocks; ++block) {
    const auto index = static_cast<size_t>(block);
    const float scale = std::ldexp(1.0F, std::to_integer<int>(scales[index]) - kScaleBias);
    const int64_t column = block / in_blocks;
    const int64_t row = block % in_blocks * kBlockValues;
    for (int64_t i = 0; i < kBlockBytes; ++i) {
      const auto pair = std::to_integer<unsigned>(blocks[index * kBlockBytes + static_cast<size_t>(i)]);
      values_[static_cast<size_t>((row + 2 * i) * out + column)] = kValues[pair & 15U] * scale;
      values_[static_cast<size_t>((row + 2 * i + 1) * out + column)] = kValues[pair >> 4U] * scale;
    }
  }
  expert_ = expert;
}

void Mxfp4Reader::read(const TensorSlice& slice, int64_t begin, std::span<float> target) {
  const int64_t columns = slice.sizes.at(2);
  const int64_t rows = slice.sizes.at(1);
  int64_t position = begin;
  for (size_t done = 0; done < target.size();) {
    const int64_t column = position % columns;
    const int64_t row = position / columns % rows;
    load(slice.offsets.at(0) + position / (columns * rows));
    const auto count = std::min(static_cast<size_t>(columns - column), target.size() - done);
    const int64_t from = (slice.offsets.at(1) + row) * shape_[2] + slice.offsets.at(2) + column;
    std::copy_n(values_.begin() + from, count, target.begin() + static_cast<std::ptrdiff_t>(done));
    done += count;
    position += static_cast<int64_t>(count);
  }
}

}  // namespace stepforge
