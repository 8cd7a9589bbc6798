// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/weight_codes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/int8.h"
#include "stepforge/kernels/nf4.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

namespace {

/// The functions of a code.
struct CodeFunctions {
  WeightCode code;
  /// Makes codes and the factor of one block. largest: its largest absolute value; NaN if a value is not finite, and then the
  /// factor must be NaN.
  void (*quantize_block)(const float* values, float largest, uint8_t* codes, float& factor);
  void (*dequantize)(const at::Tensor& codes, const at::Tensor& factors, const at::Tensor& out);
};

/// In the order of kWeightCodes.
constexpr std::array kCodeFunctions = {
    CodeFunctions{WeightCode::nf4, quantize_nf4_block, dequantize_nf4},
    CodeFunctions{WeightCode::int8, quantize_int8_block, dequantize_int8},
};
static_assert(kCodeFunctions.size() == kWeightCodes.size());
static_assert([] {
  for (size_t i = 0; i < kCodeFunctions.size(); ++i)
    if (kCodeFunctions[i].code != kWeightCodes[i].code) return false;
  return true;
}());

const CodeFunctions& functions_of(WeightCode code) {
  return kCodeFunctions.at(static_cast<size_t>(code) - 1);
}

/// Codes cannot hold a nonfinite number, and max() loses a NaN: the block shows it by its factor.
float largest_of_block(const float* values) {
  float largest = 0.0F;
  bool is_finite = true;
  for (int64_t i = 0; i < kCodeBlock; ++i) {
    is_finite = is_finite && std::isfinite(values[i]);
    largest = std::max(largest, std::abs(values[i]));
  }
  return is_finite ? largest : std::numeric_limits<float>::quiet_NaN();
}

void check_parts(const WeightCodeKind& kind, const at::Tensor& codes, const at::Tensor& factors, int64_t n) {
  check_tensor(codes, format("{} codes", kind.name), {kind.code_bytes(n)}, at::kByte);
  check_tensor(factors, format("{} factors", kind.name), {n / kCodeBlock}, at::kFloat);
}

}  // namespace

CodedWeights coded_weights(WeightCode code, const at::Tensor& stored) {
  const WeightCodeKind& kind = kind_of(code);
  const int64_t n = stored.numel() / kind.bytes(kCodeBlock) * kCodeBlock;
  return {stored.narrow(0, 0, kind.code_bytes(n)),
          stored.narrow(0, kind.code_bytes(n), kind.factor_bytes(n)).view(at::kFloat)};
}

void quantize_blocks(WeightCode code, const at::Tensor& values, const CodedWeights& to) {
  const WeightCodeKind& kind = kind_of(code);
  const int64_t n = values.numel();
  check_tensor(values, format("{} values", kind.name), {n}, at::kFloat);
  check_parts(kind, to.codes, to.factors, n);
  const auto* from = values.const_data_ptr<float>();
  auto* codes = to.codes.mutable_data_ptr<uint8_t>();
  auto* factors = to.factors.mutable_data_ptr<float>();
  const auto quantize_block = functions_of(code).quantize_block;
  const int64_t bytes_of_block = kind.code_bytes(kCodeBlock);
  at::parallel_for(0, n / kCodeBlock, 256, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const float* of_block = from + block * kCodeBlock;
      quantize_block(of_block, largest_of_block(of_block), codes + block * bytes_of_block, factors[block]);
    }
  });
}

void largest_of_blocks(const at::Tensor& values, const at::Tensor& largest) {
  const int64_t blocks = largest.numel();
  check_tensor(largest, "largest values", {blocks}, at::kFloat);
  check_tensor(values, "values", {blocks * kCodeBlock}, at::kFloat);
  const auto* from = values.const_data_ptr<float>();
  auto* to = largest.mutable_data_ptr<float>();
  at::parallel_for(0, blocks, 256, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block)
      to[block] = largest_of_block(from + block * kCodeBlock);
  });
}

void quantize_weights(WeightCode code, const at::Tensor& values, const at::Tensor& stored, int64_t begin) {
  const WeightCodeKind& kind = kind_of(code);
  const int64_t n = values.numel();
  if (begin % kCodeBlock != 0 || n % kCodeBlock != 0)
    throw Error(
        format("{}: weights {} to {} are no whole blocks of {}", kind.name, begin, begin + n, kCodeBlock));
  const CodedWeights made{at::empty({kind.code_bytes(n)}, at::device(at::kCPU).dtype(at::kByte)),
                          at::empty({n / kCodeBlock}, at::device(at::kCPU).dtype(at::kFloat))};
  quantize_blocks(code, values, made);
  const CodedWeights all = coded_weights(code, stored);
  all.codes.narrow(0, kind.code_bytes(begin), kind.code_bytes(n)).copy_(made.codes);
  all.factors.narrow(0, begin / kCodeBlock, n / kCodeBlock).copy_(made.factors);
}

void dequantize_weights(WeightCode code, const CodedWeights& weights, const at::Tensor& out) {
  functions_of(code).dequantize(weights.codes, weights.factors, out);
}

void dequantize_weights(WeightCode code, const at::Tensor& stored, const at::Tensor& out) {
  dequantize_weights(code, coded_weights(code, stored), out);
}

void check_coded(WeightCode code, const at::Tensor& codes, const at::Tensor& factors, const at::Tensor& out) {
  const WeightCodeKind& kind = kind_of(code);
  const int64_t n = out.numel();
  check_shape(out, format("{} out", kind.name), {n});
  check_parts(kind, codes, factors, n);
}

}  // namespace stepforge
