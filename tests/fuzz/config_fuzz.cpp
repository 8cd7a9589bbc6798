// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for the config parser: any text is refused with an Error, or its config is the same after
// writing and parsing it again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "stepforge/base/error.h"
#include "stepforge/config/load.h"
#include "stepforge/config/schema_docs.h"

namespace {

std::optional<stepforge::LoadedConfig> accepted(std::string_view text) {
  try {
    return stepforge::parse_config(text, "fuzz");
  } catch (const stepforge::Error&) {
    return std::nullopt;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto loaded = accepted(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!loaded) return 0;
  const std::string written = stepforge::config_toml(loaded->config);
  const auto again = accepted(written);
  if (!again || stepforge::config_toml(again->config) != written) std::abort();
  return 0;
}
