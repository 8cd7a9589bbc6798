// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for headers of llm.c's token files: the first four bytes are the size of the file beyond the input, the
// rest is its beginning.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "stepforge/base/error.h"
#include "stepforge/dataset/token_shards.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using stepforge::LlmcHeader;
  uint32_t more = 0;
  if (size < sizeof more) return 0;
  std::memcpy(&more, bytes, sizeof more);
  const auto file = std::as_bytes(std::span(bytes, size).subspan(sizeof more));
  const auto beginning = file.first(std::min<size_t>(file.size(), LlmcHeader::kBytes));
  const int64_t file_bytes = std::ssize(file) + int64_t{more};
  try {
    const LlmcHeader header = stepforge::parse_llmc_header(beginning, file_bytes, "input.bin");
    if (header.tokens < 0) __builtin_trap();
    if (LlmcHeader::kBytes + header.tokens * token_bytes(header.type) != file_bytes) __builtin_trap();
  } catch (const stepforge::FormatError&) {
    return 0;
  }
  return 0;
}
