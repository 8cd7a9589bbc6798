// Which of this host's addresses others reach it by.
#pragma once

#include <string>

namespace stepforge {

/// The address from which this host would send to `host`:`port`; nothing is sent. Throws UsageError if the
/// name is unknown or there is no way there.
std::string address_towards(const std::string& host, int port);

}  // namespace stepforge
