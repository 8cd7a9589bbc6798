// SPDX-License-Identifier: Apache-2.0
// Codes in which frozen weights may be stored instead of numbers.
#pragma once

#include <cstdint>

#include "stepforge/base/dtype.h"

namespace stepforge {

enum class WeightCode : uint8_t {
  none,
  /// 4 bits for each weight, and the largest absolute value of each block in fp32: NF4 of QLoRA (arXiv:2305.14314), as
  /// bitsandbytes has it for blocks of 64 without double quantization.
  nf4
};

/// Consecutive weights of a block.
inline constexpr int64_t kCodeBlock = 64;

/// How weights are stored: numbers of a type, or codes, as bytes.
struct WeightStorage {
  DType dtype = DType::f32;  ///< u8 for codes
  WeightCode code = WeightCode::none;

  /// Bytes of `elements` weights; with codes a multiple of kCodeBlock.
  constexpr int64_t bytes(int64_t elements) const {
    if (code == WeightCode::none) return elements * dtype_bytes(dtype);
    return elements / 2 + elements / kCodeBlock * static_cast<int64_t>(sizeof(float));
  }
  bool operator==(const WeightStorage&) const = default;
};

}  // namespace stepforge
