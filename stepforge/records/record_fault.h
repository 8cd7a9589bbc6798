// SPDX-License-Identifier: Apache-2.0
// What happens to records that are malformed.
#pragma once

#include <functional>
#include <string>

namespace stepforge {

/// Told about a malformed record; `message` makes the text that names its place and its fault, which may take long.
/// If it returns, the record is left out; it may throw instead.
using FaultHandler = std::function<void(const std::function<std::string()>& message)>;

}  // namespace stepforge
