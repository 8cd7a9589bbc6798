// SPDX-License-Identifier: Apache-2.0
// Codes in which frozen weights may be stored instead of numbers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "stepforge/base/dtype.h"

namespace stepforge {

enum class WeightCode : uint8_t { none, nf4, int8 };

/// Consecutive weights of a block, which have one factor, in fp32.
inline constexpr int64_t kCodeBlock = 64;

/// Consecutive factors of a tensor, which have one scale if they are codes themselves (double quantization).
inline constexpr int64_t kFactorBlock = 256;

/// Numbers in fp32 that belong to the coded factors of a tensor of so many weights: the mean of its factors, and the scales.
constexpr int64_t factor_scales(int64_t elements) {
  return 1 + (elements / kCodeBlock + kFactorBlock - 1) / kFactorBlock;
}

/// What is known of a code outside of its own files (kernels/weight_codes.h).
struct WeightCodeKind {
  WeightCode code = WeightCode::none;
  std::string_view name;  ///< in model.frozen_dtype
  int64_t bits = 0;       ///< of each weight, without the factors

  /// Of whole blocks; the bytes of their factors follow.
  constexpr int64_t code_bytes(int64_t elements) const { return elements * bits / 8; }
  constexpr int64_t factor_bytes(int64_t elements) const {
    return elements / kCodeBlock * static_cast<int64_t>(sizeof(float));
  }
  constexpr int64_t bytes(int64_t elements) const { return code_bytes(elements) + factor_bytes(elements); }
};

/// A row for each code, in the order of the enum.
inline constexpr std::array kWeightCodes = {
    // Factors are the largest absolute values: NF4 of QLoRA (arXiv:2305.14314), as bitsandbytes has it for blocks of 64.
    // With double quantization they are codes too.
    WeightCodeKind{WeightCode::nf4, "nf4", 4},
    // Whole numbers up to 127; factors are the largest absolute values / 127.
    WeightCodeKind{WeightCode::int8, "int8", 8},
};

/// Throws std::out_of_range for none.
constexpr const WeightCodeKind& kind_of(WeightCode code) {
  return kWeightCodes.at(static_cast<size_t>(code) - 1);
}

static_assert([] {
  for (const WeightCodeKind& kind : kWeightCodes)
    if (&kind_of(kind.code) != &kind) return false;
  return true;
}());

/// How weights are stored: numbers of a type, or codes, as bytes.
struct WeightStorage {
  DType dtype = DType::f32;  ///< u8 for codes
  WeightCode code = WeightCode::none;
  bool coded_factors = false;  ///< the factors of codes are bytes, whose scales follow

  constexpr bool coded() const { return code != WeightCode::none; }
  /// Bytes of `elements` weights; with codes a multiple of kCodeBlock, and without the scales of coded factors, which belong to whole
  /// tensors (factor_scales()).
  constexpr int64_t bytes(int64_t elements) const {
    if (!coded()) return elements * dtype_bytes(dtype);
    const WeightCodeKind& kind = kind_of(code);
    return kind.code_bytes(elements) + (coded_factors ? elements / kCodeBlock : kind.factor_bytes(elements));
  }
  bool operator==(const WeightStorage&) const = default;
};

}  // namespace stepforge
