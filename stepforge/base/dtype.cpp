// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/dtype.h"

#include <array>
#include <cstddef>

namespace stepforge {
namespace {

struct DTypeNames {
  DType dtype;
  std::string_view safetensors;
  std::string_view config;
  std::string_view torch;
};

// In the order of the enumeration.
constexpr std::array<DTypeNames, 10> kNames = {{
    {DType::f64, "F64", "fp64", "float64"},
    {DType::f32, "F32", "fp32", "float32"},
    {DType::f16, "F16", "fp16", "float16"},
    {DType::bf16, "BF16", "bf16", "bfloat16"},
    {DType::i64, "I64", "int64", "int64"},
    {DType::i32, "I32", "int32", "int32"},
    {DType::i16, "I16", "int16", "int16"},
    {DType::i8, "I8", "int8", "int8"},
    {DType::u8, "U8", "uint8", "uint8"},
    {DType::boolean, "BOOL", "bool", "bool"},
}};

std::optional<DType> find_name(std::string_view name, std::string_view DTypeNames::* column) {
  for (const DTypeNames& names : kNames) {
    if (names.*column == name) return names.dtype;
  }
  return std::nullopt;
}

const DTypeNames& names_of(DType dtype) {
  return kNames.at(static_cast<size_t>(dtype));
}

}  // namespace

std::string_view safetensors_name(DType dtype) {
  return names_of(dtype).safetensors;
}
std::string_view dtype_name(DType dtype) {
  return names_of(dtype).config;
}
std::string_view torch_dtype_name(DType dtype) {
  return names_of(dtype).torch;
}

std::optional<DType> dtype_from_safetensors(std::string_view name) {
  return find_name(name, &DTypeNames::safetensors);
}
std::optional<DType> dtype_from_name(std::string_view name) {
  return find_name(name, &DTypeNames::config);
}
std::optional<DType> dtype_from_torch_name(std::string_view name) {
  return find_name(name, &DTypeNames::torch);
}

}  // namespace stepforge
