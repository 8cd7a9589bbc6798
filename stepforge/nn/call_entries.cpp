// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/call_entries.h"

#include <array>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/modelspec/call_kind.h"

namespace stepforge {

// Each is defined in calls/.
extern const CallEntry kRmsNormEntry;
extern const CallEntry kLinearEntry;
extern const CallEntry kBiasEntry;
extern const CallEntry kExchangeEntry;
extern const CallEntry kRotaryEntry;
extern const CallEntry kAttentionEntry;
extern const CallEntry kToHeadsEntry;
extern const CallEntry kToTokensEntry;
extern const CallEntry kSwigluEntry;
extern const CallEntry kResidualAddEntry;
extern const CallEntry kAddEntry;
extern const CallEntry kGatedAddEntry;
extern const CallEntry kLookupEntry;
extern const CallEntry kSplitEntry;
extern const CallEntry kConcatEntry;
extern const CallEntry kLatentHeadsEntry;
extern const CallEntry kWideLinearEntry;
extern const CallEntry kRouteEntry;
extern const CallEntry kSortRowsEntry;
extern const CallEntry kExpertInEntry;
extern const CallEntry kTakeRowsEntry;
extern const CallEntry kSumRowsEntry;
extern const CallEntry kExpertRowsEntry;
extern const CallEntry kExpertOutEntry;
extern const CallEntry kLossEntry;
extern const CallEntry kScoreEntry;
extern const CallEntry kDropoutEntry;
extern const CallEntry kLowRankEntry;
extern const CallEntry kMagnitudeEntry;

std::span<const CallEntry* const> call_entries() {
  static constexpr std::array kEntries = {
      &kRmsNormEntry,     &kLinearEntry,     &kBiasEntry,       &kExchangeEntry,  &kRotaryEntry,
      &kAttentionEntry,   &kToHeadsEntry,    &kToTokensEntry,   &kSwigluEntry,    &kResidualAddEntry,
      &kAddEntry,         &kGatedAddEntry,   &kLookupEntry,     &kSplitEntry,     &kConcatEntry,
      &kLatentHeadsEntry, &kWideLinearEntry, &kRouteEntry,      &kSortRowsEntry,  &kExpertInEntry,
      &kTakeRowsEntry,    &kSumRowsEntry,    &kExpertRowsEntry, &kExpertOutEntry, &kLossEntry,
      &kScoreEntry,       &kDropoutEntry,    &kLowRankEntry,    &kMagnitudeEntry};
  return kEntries;
}

const CallEntry& entry_of(const CallKind& kind) {
  for (const CallEntry* entry : call_entries())
    if (entry->kind == &kind) return *entry;
  throw Error(format("calls of kind {} have no entry in call_entries()", kind.name));
}

}  // namespace stepforge
