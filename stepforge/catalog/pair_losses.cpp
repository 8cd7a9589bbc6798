// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/pair_losses.h"

#include <array>

#include "stepforge/base/error.h"

namespace stepforge {

namespace {

/// A value of preference.loss.
struct PairLossKind {
  PreferenceLoss name = PreferenceLoss::none;
  PairForm form = PairForm::sigmoid;
  bool judged = false;
  bool has_reference = false;
  bool normalized = false;
  bool log_odds = false;
  bool has_margin = false;
  bool scores = false;
  bool has_baseline = false;
  // Unless the settings say it:
  double beta = 0.1;
  double margin = 0.0;
  double sft_weight = 0.0;
};

constexpr std::array<PairLossKind, 9> kPairLosses = {{
    {.name = PreferenceLoss::dpo, .has_reference = true},
    {.name = PreferenceLoss::hinge, .form = PairForm::hinge, .has_reference = true},
    {.name = PreferenceLoss::ipo, .form = PairForm::square, .has_reference = true, .normalized = true},
    {.name = PreferenceLoss::cpo, .sft_weight = 1.0},
    {.name = PreferenceLoss::simpo, .normalized = true, .has_margin = true, .beta = 2.0, .margin = 0.5},
    {.name = PreferenceLoss::orpo, .normalized = true, .log_odds = true, .sft_weight = 1.0},
    {.name = PreferenceLoss::reward, .has_margin = true, .scores = true, .beta = 1.0},
    {.name = PreferenceLoss::kto, .judged = true, .has_reference = true, .has_baseline = true},
    {.name = PreferenceLoss::apo_zero_unpaired, .judged = true, .has_reference = true},
}};

}  // namespace

PairLoss find_pair_loss(const PreferenceConfig& preference) {
  for (const PairLossKind& kind : kPairLosses) {
    if (kind.name != preference.loss) continue;
    const double beta = preference.beta < 0 ? kind.beta : preference.beta;
    const double margin = preference.margin < 0 ? kind.margin : preference.margin;
    return {.form = kind.form,
            .judged = kind.judged,
            .has_reference = kind.has_reference,
            .normalized = kind.normalized || preference.length_normalized,
            .log_odds = kind.log_odds,
            .scores = kind.scores,
            .beta = kind.log_odds ? 1.0 : beta,
            .margin = kind.has_margin ? margin : 0.0,
            .smoothing = preference.label_smoothing,
            .weight = kind.log_odds ? beta : 1.0,
            .sft_weight = preference.sft_weight < 0 ? kind.sft_weight : preference.sft_weight,
            .center_weight = kind.scores ? preference.center_weight : 0.0,
            .has_baseline = kind.has_baseline,
            .desirable_weight = preference.desirable_weight,
            .undesirable_weight = preference.undesirable_weight};
  }
  throw Error("there is no loss of pairs without a name");
}

}  // namespace stepforge
