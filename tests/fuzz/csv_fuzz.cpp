// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for CSV: the first byte chooses the separator, the rest is the file.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "stepforge/base/error.h"
#include "stepforge/records/csv_reader.h"
#include "tests/fuzz/memory_contents.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size == 0) return 0;
  const std::string_view file(reinterpret_cast<const char*>(bytes + 1), size - 1);
  try {
    stepforge::CsvReader reader(std::make_unique<stepforge::MemoryContents>(file),
                                (bytes[0] & 1) != 0 ? '\t' : ',', "input.csv", 1 << 20);
    stepforge::require_rows(reader);
  } catch (const stepforge::FormatError&) {
    return 0;
  }
  return 0;
}
