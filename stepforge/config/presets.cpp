// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/presets.h"

#include <array>

namespace stepforge {

namespace {

constexpr auto kPresets = std::to_array<EmbeddedFile>({
#include "presets_embedded.inc"
});

}  // namespace

std::span<const EmbeddedFile> embedded_presets() {
  return kPresets;
}

const EmbeddedFile* find_preset(std::string_view name) {
  return find_embedded(kPresets, name);
}

}  // namespace stepforge
