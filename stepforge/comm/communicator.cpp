// SPDX-License-Identifier: Apache-2.0
#include "stepforge/comm/communicator.h"

#include <numeric>
#include <vector>

namespace stepforge {

std::unique_ptr<Communicator> group_of_all(World* world, const std::string& name) {
  if (world == nullptr || world->size() == 1) return nullptr;
  std::vector<int> ranks(static_cast<std::size_t>(world->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world->group(name, ranks);
}

}  // namespace stepforge
