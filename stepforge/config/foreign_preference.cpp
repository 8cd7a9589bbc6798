// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/foreign_preference.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

/// A loss of TRL's DPOTrainer.
struct DpoLoss {
  std::string_view theirs;
  std::string_view ours;
  bool length_normalized = false;
};

constexpr auto kDpoLosses = std::to_array<DpoLoss>({
    {"sigmoid", "dpo"},
    {"sigmoid_norm", "dpo", true},
    {"hinge", "hinge"},
    {"ipo", "ipo"},
});

bool has_smoothing(std::string_view loss) {
  return loss == "dpo" || loss == "cpo" || loss == "simpo";
}

void convert_pair_numbers(ForeignConversion& conversion, std::string_view loss, const ForeignPairs& pairs) {
  const bool is_simpo = loss == "simpo";
  if (const auto beta = conversion.number(pairs.beta)) {
    conversion.set(pairs.beta, "preference.beta", number_text(*beta));
  } else if (is_simpo) {  // the only loss whose beta has another default here
    conversion.set_default("preference.beta", "0.1");
  }
  if (const auto smoothing = conversion.number(pairs.label_smoothing)) {
    if (has_smoothing(loss)) {
      conversion.set(pairs.label_smoothing, "preference.label_smoothing", toml_float(*smoothing));
    } else {
      conversion.need_nothing(pairs.label_smoothing, format("{} has no smoothing there", loss));
    }
  }
  if (const auto margin = conversion.number(pairs.margin)) {
    if (is_simpo) {
      conversion.set(pairs.margin, "preference.margin", toml_float(*margin));
    } else {
      conversion.need_nothing(pairs.margin, "read only by simpo");
    }
  }
}

void convert_judged_weights(ForeignConversion& conversion, const ForeignPairs& pairs) {
  if (const auto weight = conversion.number(pairs.desirable))
    conversion.set(pairs.desirable, "preference.desirable_weight", toml_float(*weight));
  if (const auto weight = conversion.number(pairs.undesirable))
    conversion.set(pairs.undesirable, "preference.undesirable_weight", toml_float(*weight));
}

/// A row holds a whole pair, and nothing of the training of single texts is left.
void convert_pair_rows(ForeignConversion& conversion, const ForeignPairs& pairs) {
  const int64_t length =
      conversion.is_set("training.seq_len") ? conversion.config().training.seq_len : pairs.default_length;
  const std::string_view given = conversion.has(pairs.length) ? pairs.length : "";
  if (conversion.config().preference.unpaired())
    conversion.set(given, "training.seq_len", format("{}", length));
  else
    conversion.set(given, "training.seq_len", format("{}", 2 * length),
                   format("both answers of a pair with their prompt; there {} for each", length));
  conversion.set_default("data.packing", "none");
  if (conversion.has("label_smoothing_factor")) {
    conversion.unset("training.label_smoothing");
    conversion.need_nothing("label_smoothing_factor", "losses of pairs do not read it there");
  }
  if (pairs.dropout.empty() || !conversion.is_set("adapter.dropout")) return;
  conversion.unset("adapter.dropout");
  if (conversion.has(pairs.dropout))
    conversion.need_nothing(pairs.dropout, "training on pairs has no dropout there");
}

}  // namespace

void convert_pairs(ForeignConversion& conversion, std::string_view key, std::string_view loss,
                   const ForeignPairs& pairs) {
  conversion.set(key, "preference.loss", std::string(loss));
  convert_pair_numbers(conversion, loss, pairs);
  if (conversion.config().preference.unpaired()) convert_judged_weights(conversion, pairs);
  if (loss == "kto") conversion.lose("preference.loss", kMismatched);
  convert_pair_rows(conversion, pairs);
}

bool convert_dpo_losses(ForeignConversion& conversion, std::string_view names, std::string_view weights,
                        const ForeignPairs& pairs) {
  const ConfigValue* given = conversion.find(names);
  const std::vector<std::string> losses =
      given == nullptr ? std::vector<std::string>{"sigmoid"} : names_in(*given);
  const ConfigValue* shares = conversion.find(weights);
  const auto weight_of = [&](size_t i) {
    return shares == nullptr || i >= shares->list.size() ? 1.0 : number_of(&shares->list[i]).value_or(1.0);
  };
  const DpoLoss* loss = nullptr;
  double sft_weight = 0.0;
  for (size_t i = 0; i < losses.size(); ++i) {
    if (losses[i] == "sft") {
      sft_weight += weight_of(i);
      continue;
    }
    const auto* const known = std::ranges::find(kDpoLosses, std::string_view(losses[i]), &DpoLoss::theirs);
    if (known == kDpoLosses.end() || loss != nullptr) {
      conversion.refuse(names, known == kDpoLosses.end() ? kOtherPairLoss : "a run has one loss of pairs");
      return false;
    }
    if (weight_of(i) != 1.0) {
      conversion.refuse(weights,
                        "the loss of pairs has the weight 1; of \"sft\" it is preference.sft_weight");
      return false;
    }
    loss = known;
  }
  if (loss == nullptr) {
    conversion.refuse(names, kOtherPairLoss);
    return false;
  }
  convert_pairs(conversion, given == nullptr ? "" : names, loss->ours, pairs);
  if (loss->length_normalized) conversion.set(names, "preference.length_normalized", "true");
  if (sft_weight > 0) conversion.set(names, "preference.sft_weight", toml_float(sft_weight));
  return true;
}

void convert_sft_weight(ForeignConversion& conversion, std::string_view key) {
  if (const auto weight = conversion.number(key))
    conversion.set(key, "preference.sft_weight", toml_float(*weight));
}

bool convert_reference(ForeignConversion& conversion, std::string_view key, std::string_view model) {
  const std::string reference = conversion.text(key);
  if (reference.empty()) return false;
  if (reference != conversion.text(model)) {
    conversion.set(key, "preference.reference", toml_string(reference), kReferenceFolder);
    return true;
  }
  conversion.need_nothing(key, kOneReference);
  return false;
}

std::string_view preference_format(const ForeignConversion& conversion) {
  return conversion.config().preference.unpaired() ? "unpaired_preference" : "preference";
}

bool compares_with_reference(std::string_view loss) {
  return loss == "dpo" || loss == "hinge" || loss == "ipo";
}

void need_none_of(ForeignConversion& conversion, std::initializer_list<std::string_view> keys,
                  std::string_view why) {
  for (const std::string_view key : keys)
    if (conversion.has(key)) conversion.need_nothing(key, why);
}

}  // namespace stepforge
