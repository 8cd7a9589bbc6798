// SPDX-License-Identifier: Apache-2.0
// The section [preference]. Names are those of TRL where it has them.
#include "stepforge/config/sections.h"

namespace stepforge {

SchemaOf<PreferenceConfig> preference_section() {
  return SchemaOf<PreferenceConfig>()
      .field(
          "loss", &PreferenceConfig::loss,
          "Loss of pairs of answers or of judged answers: none trains on single texts, dpo (arXiv:2305.18290), hinge "
          "(arXiv:2305.10425) and ipo (arXiv:2310.12036) compare with a reference, cpo "
          "(arXiv:2401.08417), simpo (arXiv:2405.14734) and orpo (arXiv:2403.07691) need no reference; reward "
          "(arXiv:2203.02155) trains a reward model, which has a score in place of a vocabulary; kto (arXiv:2402.01306) "
          "and apo_zero_unpaired (arXiv:2408.06266) learn from single answers that are desirable or not, and compare "
          "with a reference.")
      .field(
          "reference", &PreferenceConfig::reference,
          "Frozen model with which a loss that has a reference compares: a Hugging Face folder, a run or a checkpoint "
          "with the same tokenizer, whose log-probabilities are computed once, before training; empty means the "
          "model at the start of the run.")
      .field(
          "beta", &PreferenceConfig::beta,
          "Factor of the difference between the answers, or from the reference, of orpo weight of its ratio; -1 means 2 for simpo "
          "and 0.1 for the others.",
          {.max = 1000, .above = 0, .special = -1})
      .field("label_smoothing", &PreferenceConfig::label_smoothing,
             "Assumed share of pairs in which the worse answer is preferred (cDPO; also of cpo and simpo).",
             {.min = 0, .below = 0.5})
      .field(
          "margin", &PreferenceConfig::margin,
          "By how much the reward of the better answer is to exceed that of the other (simpo_gamma), of simpo and "
          "reward; -1 means 0.5 for simpo and 0 for reward.",
          {.min = 0, .max = 1000, .special = -1})
      .field(
          "length_normalized", &PreferenceConfig::length_normalized,
          "Whether the log-probability of an answer is divided by its number of tokens; ipo, simpo and orpo "
          "always do it.")
      .field("sft_weight", &PreferenceConfig::sft_weight,
             "Weight of the mean cross-entropy of the better answers beside the loss (cpo_alpha, pref_ftx); "
             "-1 means 1 for cpo and orpo and 0 for the others.",
             {.min = 0, .max = 1000, .special = -1})
      .field(
          "center_weight", &PreferenceConfig::center_weight,
          "Weight of the square of the sum of both scores beside the loss of reward (center_rewards_coefficient, "
          "arXiv:2312.09244), which keeps scores near 0.",
          {.min = 0, .max = 1000})
      .field("desirable_weight", &PreferenceConfig::desirable_weight,
             "Weight of the loss of a desirable answer, of kto and apo_zero_unpaired.",
             {.min = 0, .max = 1000})
      .field("undesirable_weight", &PreferenceConfig::undesirable_weight,
             "Weight of the loss of an undesirable answer, of kto and apo_zero_unpaired.",
             {.min = 0, .max = 1000});
}

}  // namespace stepforge
