// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/cost.h"

#include <algorithm>

#include "stepforge/modelspec/kernel_tiles.h"

namespace stepforge {

std::string_view axis_name(BlockAxis axis) {
  constexpr std::array<std::string_view, kBlockAxes> kNames = {"tensor", "context", "heads", "experts"};
  return kNames.at(static_cast<std::size_t>(axis));
}

std::string_view exchange_name(ExchangeKind kind) {
  constexpr std::array<std::string_view, 7> kNames = {"sum",   "max",        "gather", "sum of slices",
                                                      "slice", "all-to-all", "shift"};
  return kNames.at(static_cast<std::size_t>(kind));
}

int64_t Workspace::bytes(const CostContext& context) const {
  const int64_t at_once = chunk > 0 ? std::min(chunk, context.tokens) : context.tokens;
  const int64_t narrows = std::max(narrow, narrow_token * std::min(at_once, cpu::kBf16ProductTokens));
  const int64_t narrow_bytes =
      context.compute == DType::f32 ? 0 : narrows * static_cast<int64_t>(dtype_bytes(context.compute));
  const int64_t document = std::max<int64_t>(1, context.document_length);
  const int64_t tokens = context.tokens * context.parts;
  const int64_t tasks = (tokens + document - 1) / document * tasks_per_document;
  const int64_t threads = std::clamp<int64_t>(context.threads, 1, std::max<int64_t>(tasks, 1));
  return token.bytes(context.tokens, context.compute, context.slices) +
         chunk_token.bytes(std::min(chunk, context.tokens), context.compute) + narrow_bytes +
         fixed_fp32 * static_cast<int64_t>(sizeof(float)) +
         threads * (thread_bytes + thread_bytes_per_key * context.document_length);
}

}  // namespace stepforge
