// What the ranks of a job check and do together before they train.
#pragma once

#include <string>
#include <string_view>

#include "stepforge/comm/communicator.h"

namespace stepforge {

/// Throws UsageError on every rank if the ranks' `value`s differ; it names `what` and the ranks that differ
/// from rank 0. `all` is null for one rank.
void require_agreement(Communicator* all, std::string_view what, const std::string& value);

}  // namespace stepforge
