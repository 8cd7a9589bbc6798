// SPDX-License-Identifier: Apache-2.0
// What this build is.
#pragma once

#include <string_view>

namespace stepforge {

/// "0.1.0"
std::string_view version();
/// The commit it was configured from, "unknown" outside a repository.
std::string_view commit();
/// "g++ 12.2.0"
std::string_view compiler();
/// The libtorch it was made for, "" if built without.
std::string_view built_for_torch();

}  // namespace stepforge
