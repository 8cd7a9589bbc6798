// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/loss_kinds.h"

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

LossKind find_loss(const Config& config) {
  const std::string& name = config.training.loss;
  if (name == "cross_entropy") return {.name = "cross_entropy"};
  if (const LossKind* added = config.extensions.registry().find<LossKind>(name)) return *added;
  throw UsageError(format("training.loss = \"{}\": there is no such loss; is a plug-in missing?", name));
}

}  // namespace stepforge
