// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/mds_value.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <type_traits>

#include <simdjson.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/records/table_reader.h"

namespace stepforge {

namespace {

template <typename T>
T number_of(std::string_view bytes) {
  std::array<char, sizeof(T)> raw{};
  bytes.copy(raw.data(), raw.size());
  return std::bit_cast<T>(raw);
}

void append_real(std::string& json, double value) {
  json += std::isfinite(value) ? format("{}", value) : "null";
}

double half_to_double(uint16_t bits) {
  constexpr int kFractionBits = 10;
  constexpr int kBias = 15;
  const int exponent = (bits >> kFractionBits) & 0x1F;
  const int fraction = bits & 0x3FF;
  double size = 0.0;
  if (exponent == 0x1F) {
    size = INFINITY;  // or not a number, which is also written as null
  } else if (exponent == 0) {
    size = std::ldexp(fraction, 1 - kBias - kFractionBits);
  } else {
    size = std::ldexp(fraction + (1 << kFractionBits), exponent - kBias - kFractionBits);
  }
  return (bits & 0x8000) != 0 ? -size : size;
}

template <typename T>
void append_number(std::string& json, std::string_view bytes) {
  if constexpr (std::is_floating_point_v<T>) {
    append_real(json, double{number_of<T>(bytes)});
  } else {
    json += format("{}", number_of<T>(bytes));
  }
}

void append_half(std::string& json, std::string_view bytes) {
  append_real(json, half_to_double(number_of<uint16_t>(bytes)));
}

/// On one line, and checked, so that it cannot end its row.
void append_json(std::string& json, std::string_view bytes) {
  simdjson::dom::parser parser;
  simdjson::dom::element value;
  const simdjson::padded_string padded(bytes);
  if (const auto parsed = parser.parse(padded).get(value); parsed != simdjson::SUCCESS)
    throw FormatError(format("invalid JSON: {}", simdjson::error_message(parsed)));
  json += std::string(simdjson::minify(value));
}

constexpr std::array kEncodings = {
    MdsEncoding{"str", 0, append_json_text},
    MdsEncoding{"json", 0, append_json},
    MdsEncoding{"str_int", 0, append_json_text},
    MdsEncoding{"str_float", 0, append_json_text},
    MdsEncoding{"str_decimal", 0, append_json_text},
    MdsEncoding{"int", 8, append_number<int64_t>},
    MdsEncoding{"int8", 1, append_number<int8_t>},
    MdsEncoding{"int16", 2, append_number<int16_t>},
    MdsEncoding{"int32", 4, append_number<int32_t>},
    MdsEncoding{"int64", 8, append_number<int64_t>},
    MdsEncoding{"uint8", 1, append_number<uint8_t>},
    MdsEncoding{"uint16", 2, append_number<uint16_t>},
    MdsEncoding{"uint32", 4, append_number<uint32_t>},
    MdsEncoding{"uint64", 8, append_number<uint64_t>},
    MdsEncoding{"float16", 2, append_half},
    MdsEncoding{"float32", 4, append_number<float>},
    MdsEncoding{"float64", 8, append_number<double>},
};

}  // namespace

const MdsEncoding* find_mds_encoding(std::string_view name) {
  const auto* found = std::ranges::find(kEncodings, name, &MdsEncoding::name);
  return found == kEncodings.end() ? nullptr : found;
}

}  // namespace stepforge
