// What all ranks of a job must have in common before they train together.
#pragma once

#include <string>
#include <string_view>

#include "stepforge/comm/communicator.h"

namespace stepforge {

/// Throws UsageError on every rank if the ranks' `value`s differ, naming `what` and the ranks that differ
/// from rank 0. `all` may be null: one rank.
void require_agreement(Communicator* all, std::string_view what, const std::string& value);

}  // namespace stepforge
