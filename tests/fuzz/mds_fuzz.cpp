// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for MosaicML's format: the index up to the first zero byte, then its first shard.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "stepforge/base/error.h"
#include "stepforge/base/json.h"
#include "stepforge/records/mds_shard.h"
#include "tests/fuzz/memory_contents.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(bytes), size);
  const size_t end = input.find('\0');
  if (end == std::string_view::npos) return 0;
  try {
    const stepforge::Json index = stepforge::parse_json(input.substr(0, end), "index.json");
    const auto shards = stepforge::parse_mds_index(index, "index.json");
    if (shards.empty()) return 0;
    stepforge::MdsReader reader(std::make_unique<stepforge::MemoryContents>(input.substr(end + 1)),
                                std::make_shared<const stepforge::MdsShard>(shards.front()), "input.mds");
    stepforge::require_rows(reader);
  } catch (const stepforge::FormatError&) {
    return 0;
  }
  return 0;
}
