// A slower engine: for tests of what overlaps, and of what must not depend on time.
#pragma once

#include <functional>
#include <memory>

#include "stepforge/comm/collective.h"
#include "stepforge/comm/communicator.h"

namespace stepforge {

/// Times that a call takes longer, in seconds.
struct Delay {
  double before = 0;
  double after = 0;
  /// After the call, for each byte of what all ranks together gather, reduce or broadcast. Such transfers of
  /// one world take turns, as on one link.
  double per_byte = 0;
};

/// The delay of one call. May be called by several threads.
using DelayRule = std::function<Delay(const CollectiveCall&)>;

/// What a link of that latency and bandwidth would cost: the whole of what is gathered, reduced or broadcast
/// passes through it once.
DelayRule link_delay(double latency_seconds, double bytes_per_second);

/// Sleeps for that many seconds. May be called by several threads.
using Sleep = std::function<void(double seconds)>;
void sleep_seconds(double seconds);

/// Groups of `inner`, whose calls sleep as `rule` says. Groups of one rank are not delayed: they send nothing.
std::unique_ptr<World> delayed_world(std::unique_ptr<World> inner, DelayRule rule,
                                     Sleep sleep = sleep_seconds);

}  // namespace stepforge
