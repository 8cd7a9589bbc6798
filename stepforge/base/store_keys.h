// SPDX-License-Identifier: Apache-2.0
// Keys in the store of a job of several hosts that ranks write (comm) and launchers read (launch).
#pragma once

#include <string>
#include <string_view>

#include "stepforge/base/files.h"
#include "stepforge/base/format.h"

namespace stepforge {

/// All keys of one start of a job begin with this.
inline std::string store_prefix(std::string_view run_id) {
  return format("stepforge/{}", content_hash(run_id));
}
/// The number of ranks; set by rank 0 when it has started.
inline std::string size_key(const std::string& prefix) {
  return prefix + "/size";
}
/// Set once all ranks but rank 0 have ended without a failure and need the store no more.
inline std::string all_finished_key(const std::string& prefix) {
  return prefix + "/all-finished";
}

}  // namespace stepforge
