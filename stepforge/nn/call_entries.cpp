// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/call_entries.h"

#include <array>

#include "stepforge/nn/calls/entries.h"

namespace stepforge {

namespace {

constexpr std::array<CallEntry, kCallKinds> kEntries = {{
    {CallKind::rms_norm, calls::rms_norm, calls::rms_norm_backward},
    {CallKind::linear, calls::linear, calls::linear_backward},
    {CallKind::bias, calls::bias, calls::bias_backward},
    {CallKind::exchange, calls::exchange, calls::exchange_backward},
    {CallKind::rotary, calls::rotary, calls::rotary_backward},
    {CallKind::attention, calls::attention, calls::attention_backward},
    {CallKind::to_heads, calls::to_heads, calls::to_heads_backward},
    {CallKind::to_tokens, calls::to_tokens, calls::to_tokens_backward},
    {CallKind::swiglu, calls::swiglu, calls::swiglu_backward},
    {CallKind::residual_add, calls::residual_add, calls::residual_add_backward},
    {CallKind::add, calls::add, calls::add_backward},
    {CallKind::gated_add, calls::gated_add, calls::gated_add_backward},
    {CallKind::lookup, calls::lookup, calls::lookup_backward},
    {CallKind::split, calls::split, calls::split_backward},
    {CallKind::concat, calls::concat, calls::concat_backward},
    {CallKind::latent_heads, calls::latent_heads, calls::latent_heads_backward},
    {CallKind::wide_linear, calls::wide_linear, calls::wide_linear_backward},
    {CallKind::route, calls::route, calls::route_backward},
    {CallKind::sort_rows, calls::sort_rows, calls::sort_rows_backward},
    {CallKind::expert_in, calls::expert_in, calls::expert_in_backward},
    {CallKind::expert_out, calls::expert_out, calls::expert_out_backward},
    {CallKind::loss, calls::loss, calls::loss_backward},
}};

constexpr bool follows_kinds() {
  for (std::size_t i = 0; i < kEntries.size(); ++i)
    if (kEntries[i].kind != static_cast<CallKind>(i)) return false;
  return true;
}
static_assert(follows_kinds(), "entries are in the order of CallKind");

}  // namespace

const CallEntry& entry_of(CallKind kind) {
  return kEntries.at(static_cast<std::size_t>(kind));
}

}  // namespace stepforge
