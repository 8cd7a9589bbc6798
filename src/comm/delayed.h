// A slower engine: for tests of what overlaps, and of what must not depend on time.
#pragma once

#include <functional>
#include <memory>

#include "comm/collective.h"
#include "comm/communicator.h"

namespace stepforge {

/// Times that a call takes longer, in seconds.
struct Delay {
  double before = 0;
  double after = 0;
  double per_byte =
      0;  ///< after the call; for each byte of what all ranks together gather, reduce or broadcast
};

/// The delay of one call. May be called by several threads.
using DelayRule = std::function<Delay(const CollectiveCall&)>;

/// Groups of `inner`, whose calls sleep as `rule` says. Groups of one rank are not delayed: they send
/// nothing.
std::unique_ptr<World> delayed_world(std::unique_ptr<World> inner, DelayRule rule);

}  // namespace stepforge
