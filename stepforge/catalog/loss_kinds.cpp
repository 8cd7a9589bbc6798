// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/loss_kinds.h"

#include <array>

#include "stepforge/base/find_item.h"

namespace stepforge {

LossKind find_loss(const Config& config) {
  static constexpr std::array<LossKind, 1> kBuiltin = {{{.name = "cross_entropy"}}};
  return find_item<LossKind>(config.training.loss, kBuiltin, config.extensions.registry(), "training.loss");
}

}  // namespace stepforge
