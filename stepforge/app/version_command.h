// SPDX-License-Identifier: Apache-2.0
// `stepforge version`.
#pragma once

namespace stepforge {

/// Prints version, commit, compiler and the libtorch it was made for.
int version_command();

}  // namespace stepforge
