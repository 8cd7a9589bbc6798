// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for the parser of .idx files: the first two bytes are the size of the .bin file, the rest
// is the .idx file.
#include <cstddef>
#include <cstdint>
#include <span>

#include "stepforge/base/error.h"
#include "stepforge/dataset/indexed_dataset.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size < 2) return 0;
  const auto bin_bytes = static_cast<uint64_t>(bytes[0]) | static_cast<uint64_t>(bytes[1]) << 8;
  try {
    const auto index =
        stepforge::DatasetIndex::parse(std::as_bytes(std::span(bytes + 2, size - 2)), bin_bytes, "input.idx");
    int64_t previous = 0;
    for (int64_t document = 0; document <= index.documents(); ++document) {
      const int64_t begin = index.document_begin(document);
      if (begin < previous || begin > index.tokens()) __builtin_trap();
      previous = begin;
    }
    for (int64_t token = 0; token < index.tokens(); ++token) {
      const int64_t document = index.document_of(token);
      if (index.document_begin(document) > token || index.document_begin(document + 1) <= token)
        __builtin_trap();
    }
  } catch (const stepforge::FormatError&) {
    return 0;
  }
  return 0;
}
