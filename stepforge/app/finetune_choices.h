// SPDX-License-Identifier: Apache-2.0
// The settings that `stepforge finetune` chooses: from the model, the data, and the memory that the step program needs.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "stepforge/base/log.h"
#include "stepforge/config/load.h"
#include "stepforge/plan/memory_fit.h"

namespace stepforge {

struct FinetuneOptions {
  std::string model;       ///< Hugging Face folder, run or checkpoint
  std::string data;        ///< file, folder or pattern of conversations or texts
  std::string validation;  ///< the same for validation; "": a part of `data` is held out
  bool lora = false;       ///< an adapter is trained; also without both
  bool full = false;       ///< all weights are trained
  std::string memory;      ///< of the device, such as "80GiB"; "": the free memory of this machine
  bool write_only = false;
  std::vector<std::string> overrides;  ///< fields as typed, which win over what is chosen
};

/// A setting and why it has this value.
struct FinetuneChoice {
  std::string key;
  std::string value;  ///< as TOML
  std::string reason;
};

struct FinetunePlan {
  LoadedConfig loaded;  ///< with the user's fields; checked as `train` does
  std::vector<FinetuneChoice> choices{};
  std::vector<std::string> warnings{};
  std::string memory{};       ///< "the step needs 1.2 GiB of 6.0 GiB that are free on this machine"
  bool has_template = false;  ///< `chat` can talk with the model
};

/// Chooses what the user has not set. Tokenizes the data, which goes to the cache that `train` reads too. Throws UsageError
/// if the model or the data cannot be read, or if nothing that is tried fits into `budget`, with the numbers.
FinetunePlan plan_finetuning(const FinetuneOptions& options, const MemoryBudget& budget,
                             const std::shared_ptr<Registry>& registry, Logger& log);

/// TOML of the fields that are set, by choice or by the user; it loads to the same configuration.
std::string finetune_toml(const LoadedConfig& loaded);

}  // namespace stepforge
