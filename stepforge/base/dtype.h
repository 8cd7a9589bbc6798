// SPDX-License-Identifier: Apache-2.0
// The element types of tensors, in memory and in files, without libtorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace stepforge {

enum class DType : uint8_t { f64, f32, f16, bf16, i64, i32, i16, i8, u8, boolean };

/// Bytes per element.
constexpr int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
    case DType::i16:
      return 2;
    case DType::i8:
    case DType::u8:
    case DType::boolean:
      return 1;
  }
  return 0;
}

constexpr bool is_floating_point(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

/// The name in a safetensors header: "F32", "BF16", "BOOL".
std::string_view safetensors_name(DType dtype);
/// nullopt for an unknown name; names are case-sensitive.
std::optional<DType> dtype_from_safetensors(std::string_view name);

/// The name in configs and messages: "fp32", "bf16", "int64", "bool".
std::string_view dtype_name(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);

/// The name in a Hugging Face config.json ("torch_dtype"): "float32", "bfloat16".
std::string_view torch_dtype_name(DType dtype);
std::optional<DType> dtype_from_torch_name(std::string_view name);

}  // namespace stepforge
