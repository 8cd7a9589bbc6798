// A group of one rank: data are copied, nothing is waited for.
#pragma once

#include <memory>

#include "stepforge/comm/communicator.h"
#include "stepforge/comm/failure_note.h"

namespace stepforge {

/// `global_rank` is named by abort(); the calls also throw PeerError once `world_failure` is set.
std::unique_ptr<Communicator> single_communicator(int global_rank,
                                                  std::shared_ptr<const FailureNote> world_failure);

}  // namespace stepforge
