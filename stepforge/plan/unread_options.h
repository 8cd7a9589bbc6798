// SPDX-License-Identifier: Apache-2.0
// Options that a user has set and that the job does not read, by the rules of plan/option_rules.h.
#pragma once

#include <string>
#include <vector>

#include "stepforge/config/load.h"
#include "stepforge/plan/option_rules.h"

namespace stepforge {

struct UnreadOption {
  std::string name;    ///< "optimizer.momentum"
  std::string value;   ///< as in TOML
  std::string cause;   ///< "with optimizer.name = "adamw"", "on one rank"
  std::string remedy;  ///< "remove it, or change optimizer.name"
  UnreadAction action = UnreadAction::refuse;
};

/// The options that the user has set (LoadedConfig::chosen), that differ from the default, and that the job does not read.
/// Options in a file that a setting of the command line turns off are named, not refused.
std::vector<UnreadOption> find_unread_options(const LoadedConfig& loaded, JobRanks ranks = {});

/// Throws UsageError that lists the refused options.
void refuse_unread_options(const LoadedConfig& loaded);

/// The other options, in a line for each cause: "not read on one rank: precision.reduce = "bf16"".
std::vector<std::string> unread_notes(const LoadedConfig& loaded, JobRanks ranks);

}  // namespace stepforge
