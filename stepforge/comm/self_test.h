// SPDX-License-Identifier: Apache-2.0
// Small collectives with known results, so that a transport that moves or sums wrong data is found before
// training instead of in its losses.
#pragma once

#include <string_view>

#include "stepforge/comm/communicator.h"

namespace stepforge {

/// Gathers, sums and passes on known integers. A collective of all ranks of `group`. Throws Error that names the
/// group, the collective, the rank and both values if a result is wrong, and PeerError.
void test_collectives(Communicator& group, std::string_view name);

/// The same for paired messages: passes a known integer to the next rank.
void test_messages(Communicator& group, std::string_view name);

}  // namespace stepforge
