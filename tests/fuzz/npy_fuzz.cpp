// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for the parser of .npy headers: the input is a whole file.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "stepforge/base/error.h"
#include "stepforge/data/npy.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(bytes), size);
  const auto file_bytes = static_cast<int64_t>(size);
  try {
    const stepforge::NpyHeader header =
        stepforge::parse_npy_header(file.substr(0, stepforge::kMaxNpyHeader), file_bytes, "input.npy");
    if (header.values < 0 || header.data_begin < 0) __builtin_trap();
    if (header.data_begin + 8 * header.values != file_bytes) __builtin_trap();
    for (const int64_t length : header.shape)
      if (length < 0 || (header.values > 0 && header.values % length != 0)) __builtin_trap();
  } catch (const stepforge::FormatError&) {
    return 0;
  }
  return 0;
}
