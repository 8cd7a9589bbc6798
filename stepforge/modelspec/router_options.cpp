// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/router_options.h"

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

void check_router(const RouterOptions& options, int64_t experts) {
  if (options.groups < 1 || experts % options.groups != 0)
    throw Error(format("router: {} experts do not form {} equal groups", experts, options.groups));
  if (options.chosen_groups < 1 || options.chosen_groups > options.groups) {
    throw Error(format("router: a token takes experts of {} groups, of which there are {}",
                       options.chosen_groups, options.groups));
  }
  const int64_t offered = experts / options.groups * options.chosen_groups;
  if (options.chosen < 1 || options.chosen > offered) {
    throw Error(format("router: a token takes {} experts: must be 1 to {}, the experts of {} groups",
                       options.chosen, offered, options.chosen_groups));
  }
}

}  // namespace stepforge
