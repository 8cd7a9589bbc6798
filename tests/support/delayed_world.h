// SPDX-License-Identifier: Apache-2.0
// Slows another engine down, for tests of overlap and of results that must not depend on timing.
#pragma once

#include <functional>
#include <memory>

#include "stepforge/comm/collective.h"
#include "stepforge/comm/communicator.h"

namespace stepforge::testing {

/// The delay of a call, in seconds.
struct Delay {
  double before = 0;
  double after = 0;
  /// After the call, for each byte of the gathered, reduced or broadcast data, or of those that Traffic
  /// counts for an all-to-all or a paired call. The transfers of one world do not overlap, as on one link.
  double per_byte = 0;
};

/// The delay of one call. May be called by several threads.
using DelayRule = std::function<Delay(const CollectiveCall&)>;

/// The delay of a link of this latency and bandwidth that transfers the gathered, reduced or broadcast data
/// once.
DelayRule link_delay(double latency_seconds, double bytes_per_second);

/// Sleeps for that many seconds. May be called by several threads.
using Sleep = std::function<void(double seconds)>;
void sleep_seconds(double seconds);

/// A world whose groups are those of `inner`, delayed by `rule`. Groups of one rank are not delayed: they
/// send nothing.
std::unique_ptr<World> delayed_world(std::unique_ptr<World> inner, DelayRule rule,
                                     Sleep sleep = sleep_seconds);

}  // namespace stepforge::testing
