// SPDX-License-Identifier: Apache-2.0
// Losses of pairs and of judged answers of other trainers as [preference], and what such a run needs beside it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "stepforge/config/foreign_conversion.h"

namespace stepforge {

/// Where a trainer has the settings of a loss of pairs. "" for a key that it does not have.
struct ForeignPairs {
  std::string_view beta = {};
  std::string_view label_smoothing = {};
  std::string_view margin = {};
  std::string_view desirable = {};    ///< weights of judged answers
  std::string_view undesirable = {};  ///< the same
  std::string_view dropout = {};      ///< of adapters, which is off there; "" if it is on
  std::string_view length = {};       ///< of the longest prompt with one answer
  int64_t default_length = 0;
};

/// Sets preference.loss to `loss`, one of our names, for which `key` asks; its numbers, and rows and rules for pairs.
void convert_pairs(ForeignConversion& conversion, std::string_view key, std::string_view loss,
                   const ForeignPairs& pairs);

/// The losses of TRL's DPOTrainer: one of pairs, and "sft" beside it. `names` and `weights` are keys of one value or a list.
/// Refuses other losses, and returns whether there was one that it could set.
bool convert_dpo_losses(ForeignConversion& conversion, std::string_view names, std::string_view weights,
                        const ForeignPairs& pairs);

/// A number as preference.sft_weight, if the key has one.
void convert_sft_weight(ForeignConversion& conversion, std::string_view key);

/// The path of a reference model as preference.reference, unless it is that of `model`, also a key. Returns whether it is another one.
bool convert_reference(ForeignConversion& conversion, std::string_view key, std::string_view model);

bool compares_with_reference(std::string_view loss);

/// The keys that the file has need nothing.
void need_none_of(ForeignConversion& conversion, std::initializer_list<std::string_view> keys,
                  std::string_view why);

/// The format of data for the loss that the conversion has set: "preference" or "unpaired_preference".
std::string_view preference_format(const ForeignConversion& conversion);

inline constexpr std::string_view kOnlyPairs =
    "only pre-training, supervised fine-tuning and losses of pairs or judged answers (preference.loss) are "
    "available";
inline constexpr std::string_view kOtherPairLoss =
    "preference.loss is dpo, hinge, ipo, cpo, simpo, orpo, reward, kto or apo_zero_unpaired; `--force` converts the rest";
inline constexpr std::string_view kAnswersCount =
    "of pairs and judged answers the answers count, and nothing else";
inline constexpr std::string_view kOneReference =
    "the reference is the model at the start of the run, or the one frozen model of preference.reference";
inline constexpr std::string_view kReferenceFolder =
    "a Hugging Face folder, run or checkpoint on this machine";
inline constexpr std::string_view kReferenceHeld = "the reference is held in precision.compute";
inline constexpr std::string_view kReferenceOnce =
    "the log-probabilities of the reference are always computed before the run";
inline constexpr std::string_view kPairsDropped =
    "what is longer than a row is dropped (data.too_long); there answers are cut";
inline constexpr std::string_view kMismatched =
    "a mismatched answer is that of the record before; there it comes from the same batch";
inline constexpr std::string_view kOtherDivergence = "the difference of log-probabilities is compared";

}  // namespace stepforge
