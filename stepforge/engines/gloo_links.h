// SPDX-License-Identifier: Apache-2.0
// Messages over TCP by Gloo, through c10d.
#pragma once

#include <memory>
#include <string>

#include "stepforge/comm/message_links.h"
#include "stepforge/engines/c10d_store.h"

namespace stepforge {

/// Which of the host's addresses the other ranks connect to: that of a network interface ("eth0"), or an
/// address or name of this host ("10.0.0.7").
struct GlooAddress {
  std::string interface;
  std::string address;
};

/// Creates the links of groups; their ranks find each other through `store`. A group that has not connected after
/// `init_seconds` is an Error. The groups of one rank share one thread that sends and receives. Throws
/// UsageError if there is no such interface or address.
///
/// In the whole process, SIGPIPE is ignored from then on, and TORCH_FR_BUFFER_SIZE set to 0 unless it is set:
/// c10d's record of calls is not safe for ranks that are threads.
LinksFactory gloo_links(const C10dStore& store, const GlooAddress& address, double init_seconds);

}  // namespace stepforge
