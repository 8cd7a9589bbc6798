// SPDX-License-Identifier: Apache-2.0
// A group of one rank: data are only copied.
#pragma once

#include <memory>

#include "stepforge/comm/failure_note.h"
#include "stepforge/comm/group_communicator.h"

namespace stepforge {

/// Its calls also throw PeerError once `world_failure` is set.
std::unique_ptr<Communicator> single_communicator(Membership membership,
                                                  std::shared_ptr<const FailureNote> world_failure);

}  // namespace stepforge
