// SPDX-License-Identifier: Apache-2.0
// The version of this build.
#pragma once

#include <string_view>

namespace stepforge {

/// "0.1.0"
std::string_view version();
/// The commit it was configured from, "unknown" outside a repository.
std::string_view commit();
/// "g++ 12.2.0"
std::string_view compiler();
/// The libtorch version it was built for, "" if built without libtorch.
std::string_view built_for_torch();

}  // namespace stepforge
