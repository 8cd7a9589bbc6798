// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/presets.h"

#include <algorithm>
#include <array>

namespace stepforge {

namespace {

constexpr auto kPresets = std::to_array<EmbeddedPreset>({
#include "presets_embedded.inc"
});

}  // namespace

std::span<const EmbeddedPreset> embedded_presets() {
  return kPresets;
}

const EmbeddedPreset* find_preset(std::string_view name) {
  const auto* const found = std::find_if(kPresets.begin(), kPresets.end(),
                                         [&](const EmbeddedPreset& preset) { return preset.name == name; });
  return found == kPresets.end() ? nullptr : &*found;
}

}  // namespace stepforge
