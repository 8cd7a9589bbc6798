// SPDX-License-Identifier: Apache-2.0
// The keys of other trainers and the corresponding keys of Stepforge: one table per trainer, in foreign_<trainer>.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace stepforge {

class ForeignConversion;

/// How `stepforge config convert` translates the value of another trainer's key.
enum class ForeignRule : uint8_t {
  copy,       ///< the same value
  positive,   ///< a number above 0; other values mean that the key is not set
  when_true,  ///< true sets `fixed`
  negate,     ///< the opposite boolean
  decay,      ///< the name of a learning-rate schedule
  optimizer,  ///< the name of an optimizer
  model,      ///< the folder of a model
  tokenizer,  ///< the folder of a tokenizer
  lost,       ///< a switch: off at kOffValues and at `fixed`, otherwise it cannot be translated
  refused,    ///< the same, but without this feature something else would be trained
  needless,   ///< needs nothing here; the note says why
  read,       ///< ForeignTrainer::finish reads it, together with other keys
};

struct ForeignKey {
  std::string_view name;  ///< whole: "training.seq_len"; "float8.*" stands for all keys that begin so
  std::string_view ours;  ///< our key, or ""
  std::string_view note = {};
  ForeignRule rule = ForeignRule::copy;
  /// For when_true: the value as TOML. For lost and refused: further values that mean off, with | between them.
  std::string_view fixed = {};
};

/// A default of the other trainer.
struct ForeignDefault {
  std::string_view ours;
  std::string_view value;  ///< as TOML
};

struct ForeignTrainer {
  std::string_view name;   ///< "llama-factory", for --from
  std::string_view title;  ///< "LLaMA-Factory"
  std::span<const ForeignKey> keys;
  std::span<const ForeignKey> inherited;  ///< keys of the trainer that it is built on; `keys` come first
  std::span<const ForeignDefault> defaults;
  /// Translates the keys with the rule `read`, and what depends on several keys. May be nullptr.
  void (*finish)(ForeignConversion& conversion);
  /// Sections have no meaning, keys may begin with -- and have - for _ .
  bool ignores_sections = false;
  /// A key that is not in the table but has the name of one of ours means the same.
  bool has_our_names = false;

  /// The entry for a whole name, or nullptr.
  const ForeignKey* find(std::string_view key) const;
};

/// All trainers, in order of preference if a file fits several.
std::span<const ForeignTrainer* const> foreign_trainers();

/// The trainer with this `name`, or nullptr.
const ForeignTrainer* find_foreign_trainer(std::string_view name);

/// Words that several trainers and people use, for hints only.
std::span<const ForeignKey> common_foreign_words();

/// The entry for "training.dataset_path", "per_device_train_batch_size" or "--micro-batch-size" of any trainer; the whole
/// name is preferred to its last part. Returns nullptr if there is none.
const ForeignKey* find_foreign_key(std::string_view name);

/// "use optimizer.lr (...)", or the note if there is no key of ours.
std::string foreign_remedy(const ForeignKey& key);

/// foreign_remedy for an unknown key, or "" if no other trainer has it.
std::string foreign_hint(std::string_view name);

// The tables.
const ForeignTrainer& torchtitan_trainer();
const ForeignTrainer& hugging_face_trainer();
const ForeignTrainer& trl_trainer();
const ForeignTrainer& llama_factory_trainer();
const ForeignTrainer& axolotl_trainer();
const ForeignTrainer& mindspeed_trainer();
const ForeignTrainer& veomni_trainer();
const ForeignTrainer& litgpt_trainer();
const ForeignTrainer& nanogpt_trainer();
const ForeignTrainer& megatron_trainer();
const ForeignTrainer& xtuner_trainer();

// Notes that several tables have.
inline constexpr std::string_view kNotAvailable = "not available yet";
inline constexpr std::string_view kOneTablePerSource = "one table { path = \"...\" } per source";
inline constexpr std::string_view kOneTablePerDataset =
    "one table { path = \"data/dataset_info.json\", dataset = \"...\" } per data set";
inline constexpr std::string_view kFusedKernels = "the kernels are already fused";
inline constexpr std::string_view kTraceOption =
    "not a configuration key: use `stepforge train --trace FILE`";
inline constexpr std::string_view kCurvesElsewhere =
    "not available yet; metrics.jsonl and `stepforge plot` show the curves";
inline constexpr std::string_view kModelFolder =
    "a Hugging Face folder, run or checkpoint on this machine; "
    "it sets the architecture and the tokenizer too";
inline constexpr std::string_view kNoLora =
    "adapters of this trainer are not translated: write them as [adapter]";
inline constexpr std::string_view kNoPreference =
    "preference training of this trainer is not translated: write it as [preference]";
inline constexpr std::string_view kNoQuantization =
    "of quantized weights only frozen ones of LoRA are available (model.frozen_dtype)";
inline constexpr std::string_view kShardedByDefault =
    "weights, gradients and moments are sharded over all ranks by default";

}  // namespace stepforge
