// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/adapter_choice.h"

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

void AdapterChoice::require_found(int64_t layers) const {
  for (const int64_t layer : adapter_.layers)
    if (layer >= layers)
      throw UsageError(format("adapter.layers: {} is no layer of the model, which has {}", layer, layers));
  if (modules_.empty())
    throw UsageError("adapter.targets: the model has no matrix that can have an adapter in these layers");
  targets_.require_found(modules_);
  ranks.patterns().require_found(modules_);
}

}  // namespace stepforge
