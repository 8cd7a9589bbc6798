// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for the safetensors parser: it refuses any bytes with a FormatError, or its result obeys
// the rules of the format.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "stepforge/base/error.h"
#include "stepforge/tensorfile/safetensors.h"

namespace {

void require(bool rule) {
  if (!rule) std::abort();
}

void check(const stepforge::SafetensorsHeader& header, int64_t file_bytes) {
  int64_t expected = 0;
  for (const stepforge::TensorEntry& entry : header.tensors()) {
    require(entry.begin == expected && entry.end >= entry.begin);
    require(stepforge::tensor_bytes(entry.dtype, entry.shape) == entry.bytes());
    require(header.find(entry.name) == &entry);
    expected = entry.end;
  }
  require(header.data_begin() + expected == file_bytes);
  require(header.metadata().size() <= static_cast<size_t>(file_bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto file_bytes = static_cast<int64_t>(size);
  try {
    check(stepforge::parse_safetensors(bytes, file_bytes, "fuzz"), file_bytes);
  } catch (const stepforge::FormatError&) {
    return 0;
  }
  return 0;
}
