// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "stepforge/config/config.h"
#include "tests/support/strings.h"

namespace stepforge::testing {

/// LoRA of rank 4 and scale 2.
inline AdapterConfig small_lora(Strings targets = {"all-linear"}) {
  AdapterConfig adapter;
  adapter.type = AdapterType::lora;
  adapter.rank = 4;
  adapter.alpha = 8;
  adapter.targets = std::move(targets);
  return adapter;
}

}  // namespace stepforge::testing
