// SPDX-License-Identifier: Apache-2.0
// The keys of other trainers (torchtitan, Hugging Face TrainingArguments and config.json, LLaMA-Factory,
// Megatron-LM, XTuner) and the corresponding keys of Stepforge.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace stepforge {

/// How `stepforge config convert` translates the value of another trainer's key.
enum class ForeignRule : uint8_t {
  copy,          ///< the same value; without a key of ours it is lost, unless it is off or equals `fixed`
  positive,      ///< copy a number above 0, drop others
  when_true,     ///< true sets the fixed value
  negate,        ///< the opposite boolean
  sources,       ///< one path or a list of them becomes a list of tables
  datasets,      ///< names in LLaMA-Factory's dataset_info.json
  stage,         ///< LLaMA-Factory's kind of training
  packing,       ///< whether samples share rows
  tokenizer,     ///< a folder; also sets tokenizer.type
  weights,       ///< a Hugging Face folder; also sets the tokenizer
  accumulation,  ///< micro-batches per step
  epochs,        ///< integers only
  warmup_share,  ///< a fraction of the steps
  min_lr,        ///< an absolute learning rate
  decay,         ///< the name of a schedule
  async,         ///< "disabled" becomes false
  recompute,     ///< torchtitan's modes
  preset,        ///< torchtitan's model.name and model.flavor
  strategy,      ///< "no", "steps" or "epoch", or a boolean: enables another key
  by_hand,       ///< our key has the same meaning, but its value cannot be derived
  ignore,        ///< read together with another key, or has no effect
};

struct ForeignKey {
  /// "training.dataset_path"; without a section: a top-level key, or a key of any section.
  std::string_view name;
  std::string_view ours;  ///< our key, or ""
  std::string_view note = {};
  ForeignRule rule = ForeignRule::copy;
  /// For when_true: the value as TOML. For copy without a key of ours: the value that may be dropped.
  std::string_view fixed = {};
};

std::span<const ForeignKey> all_foreign_keys();

/// The entry for "training.dataset_path", "per_device_train_batch_size" or "--micro-batch-size"; one with the
/// section is preferred. Returns nullptr if there is none.
const ForeignKey* find_foreign_key(std::string_view name);

/// For an unknown key: "use optimizer.lr", "not available yet", or "" if no other trainer has it.
std::string foreign_hint(std::string_view name);

}  // namespace stepforge
