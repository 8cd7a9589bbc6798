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
};
inline constexpr std::size_t kCallKinds = 10;

}  // namespace stepforge
