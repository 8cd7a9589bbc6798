// SPDX-License-Identifier: Apache-2.0
// Keys of other trainers (torchtitan, Hugging Face TrainingArguments and config.json, LLaMA-Factory, Megatron,
// XTuner), and what they are called here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace stepforge {

/// How `stepforge config convert` translates the value of a key.
enum class ForeignRule : uint8_t {
  copy,          ///< the same value; without a key of ours it is lost, unless it is off or harmless
  positive,      ///< copy a number above 0, drop others
  when_true,     ///< true sets the fixed value
  negate,        ///< the opposite boolean
  sources,       ///< one path or a list of them becomes a list of tables
  tokenizer,     ///< a folder; also sets tokenizer.type
  weights,       ///< a Hugging Face folder: initial weights and tokenizer
  accumulation,  ///< micro-batches per step
  epochs,        ///< whole numbers only
  warmup_share,  ///< share of the steps
  min_lr,        ///< absolute rate
  decay,         ///< name of a schedule
  async,         ///< "disabled" is false
  recompute,     ///< torchtitan's modes
  preset,        ///< torchtitan's model.name and model.flavor
  strategy,      ///< "no", "steps" or "epoch", or a boolean: whether another key counts
  by_hand,       ///< ours means the same, but its value cannot be made from theirs
  ignore,        ///< belongs to another key, or changes nothing
};

struct ForeignKey {
  /// "training.dataset_path"; without a section: a key of a flat file, or of any section.
  std::string_view name;
  std::string_view ours;  ///< our key; "" if there is none
  std::string_view note = {};
  ForeignRule rule = ForeignRule::copy;
  std::string_view fixed =
      {};  ///< of when_true: the value as TOML; without a key of ours: the harmless value
};

std::span<const ForeignKey> all_foreign_keys();

/// The entry for "training.dataset_path", "per_device_train_batch_size" or "--micro-batch-size"; the one with
/// the section first. nullptr if there is none.
const ForeignKey* find_foreign_key(std::string_view name);

/// For an unknown key: "here it is optimizer.lr", "not available yet", or "" if no other trainer has it.
std::string foreign_hint(std::string_view name);

}  // namespace stepforge
