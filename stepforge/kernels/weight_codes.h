// SPDX-License-Identifier: Apache-2.0
// Weights as codes (base/weight_code.h). Callers pass a code on and know none of them: each is a header and a kernel of its own, with a
// row in weight_codes.cpp.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "stepforge/base/weight_code.h"

namespace stepforge {

/// Codes of whole blocks, and the factors of the blocks.
struct CodedWeights {
  at::Tensor codes;    ///< u8 [WeightCodeKind::code_bytes(n)]
  at::Tensor factors;  ///< fp32 [n / kCodeBlock]
};

/// The parts of `stored`, u8 [WeightStorage::bytes(n)]: codes, then factors. Views.
CodedWeights coded_weights(WeightCode code, const at::Tensor& stored);

/// Makes codes of `values`, fp32 [n] on the host; they become weights [begin, begin + n) of `stored`, on any device. A block with a
/// nonfinite weight has the factor NaN. Throws Error unless both are multiples of kCodeBlock.
void quantize_weights(WeightCode code, const at::Tensor& values, const at::Tensor& stored, int64_t begin = 0);

/// Makes codes and factors, as quantize_weights() does, apart from where they are stored. All on the host: values and factors fp32, [n] and
/// [n / kCodeBlock], codes u8 [WeightCodeKind::code_bytes(n)].
void quantize_blocks(WeightCode code, const at::Tensor& values, const CodedWeights& to);

/// The largest absolute value of each block, NaN if one is not finite: the factors of NF4. values: fp32 [n], largest: fp32
/// [n / kCodeBlock], on the host.
void largest_of_blocks(const at::Tensor& values, const at::Tensor& largest);

/// The numbers that `weights` stand for, as below.
void dequantize_weights(WeightCode code, const CodedWeights& weights, const at::Tensor& out);

/// The numbers that `stored` stands for. out: [n] on the same device, fp32 or bf16: products in fp32, rounded to nearest even.
void dequantize_weights(WeightCode code, const at::Tensor& stored, const at::Tensor& out);

/// What the kernel of each code requires: shapes and types for out [n]. Throws Error.
void check_coded(WeightCode code, const at::Tensor& codes, const at::Tensor& factors, const at::Tensor& out);

}  // namespace stepforge
