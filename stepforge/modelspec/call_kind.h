// SPDX-License-Identifier: Apache-2.0
// The kinds of calls inside a layer; their rows are in call_table.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stepforge {

enum class CallKind : uint8_t {
  rms_norm,      ///< calls/norm.h
  linear,        ///< calls/linear.h
  bias,          ///< calls/linear.h
  exchange,      ///< calls/exchange.h
  rotary,        ///< calls/rotary.h
  attention,     ///< calls/attention.h
  to_heads,      ///< calls/attention.h
  to_tokens,     ///< calls/attention.h
  swiglu,        ///< calls/swiglu.h
  residual_add,  ///< calls/residual.h
  add,           ///< calls/residual.h
  gated_add,     ///< calls/residual.h
  lookup,        ///< calls/lookup.h
  split,         ///< calls/columns.h
  concat,        ///< calls/columns.h
  latent_heads,  ///< calls/latent_heads.h
  wide_linear,   ///< calls/router.h
  route,         ///< calls/router.h
  sort_rows,     ///< calls/experts.h
  expert_in,     ///< calls/experts.h
  expert_out,    ///< calls/experts.h
  loss           ///< calls/loss.h
};
inline constexpr std::size_t kCallKinds = 22;

}  // namespace stepforge
