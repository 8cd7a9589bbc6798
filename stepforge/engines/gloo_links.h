// SPDX-License-Identifier: Apache-2.0
// Messages over TCP by Gloo, through c10d.
#pragma once

#include <memory>
#include <string>

#include "stepforge/comm/message_links.h"
#include "stepforge/engines/c10d_store.h"

namespace stepforge {

/// The address of this host that other ranks connect to: that of a network interface ("eth0"), or an address
/// or name ("10.0.0.7"). One of the two is empty.
struct GlooAddress {
  std::string interface;
  std::string address;
};

/// Returns a function that connects the ranks of a group, which find each other through `store`. It throws
/// Error if a group is not connected after `init_seconds`. The groups of one rank share one thread that sends
/// and receives. Throws UsageError if there is no such interface or address.
///
/// Side effects on the process: SIGPIPE is ignored, and TORCH_FR_BUFFER_SIZE is set to 0 unless it is set,
/// because c10d's flight recorder is not safe for ranks that are threads.
LinksFactory gloo_links(const C10dStore& store, const GlooAddress& address, double init_seconds);

}  // namespace stepforge
