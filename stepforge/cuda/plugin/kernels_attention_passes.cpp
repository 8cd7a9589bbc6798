// SPDX-License-Identifier: Apache-2.0
// What flash takes, and its documents.
#include <algorithm>
#include <cstdint>

#include "stepforge/cuda/plugin/kernels_attention.h"

namespace stepforge::cuda_plugin {

namespace {

/// rows: after all others.
void append(std::vector<Rows>& pieces, const Rows& rows) {
  if (!pieces.empty() && pieces.back().end() == rows.begin)
    pieces.back().count += rows.count;
  else
    pieces.push_back(rows);
}

void add_document(FlashPass& pass, int64_t queries, int64_t keys) {
  pass.query_bounds.push_back(static_cast<int32_t>(pass.query_bounds.back() + queries));
  pass.key_bounds.push_back(static_cast<int32_t>(pass.key_bounds.back() + keys));
  pass.longest_queries = std::max(pass.longest_queries, queries);
  pass.longest_keys = std::max(pass.longest_keys, keys);
}

void add_range(FlashPass& pass, const Rows& queries, const Rows& keys) {
  if (!pass.queries.empty()) {
    const int64_t queries_between = queries.begin - pass.queries.back().end();
    const int64_t keys_between = keys.begin - pass.keys.back().end();
    if (queries_between > 0) add_document(pass, queries_between, 0);
    if (keys_between > 0) add_document(pass, 0, keys_between);
  }
  add_document(pass, queries.count, keys.count);
  append(pass.queries, queries);
  append(pass.keys, keys);
}

}  // namespace

std::vector<FlashPass> flash_passes(std::span<const AttentionRange> ranges, int64_t window) {
  std::vector<FlashPass> passes;
  for (const AttentionRange& range : ranges) {
    if (range.queries == 0) continue;
    const int64_t before_window = window > 0 ? std::max<int64_t>(0, range.past - window + 1) : 0;
    const Rows queries{range.query_begin, range.queries};
    const Rows keys{range.key_begin + before_window, range.seen() - before_window};
    auto pass = std::find_if(passes.begin(), passes.end(), [&](const FlashPass& earlier) {
      return earlier.causal == range.causal && earlier.queries.back().end() <= queries.begin &&
             earlier.keys.back().end() <= keys.begin;
    });
    if (pass == passes.end()) pass = passes.insert(passes.end(), FlashPass{.causal = range.causal});
    add_range(*pass, queries, keys);
  }
  return passes;
}

std::vector<Rows> document_keys(std::span<const AttentionRange> ranges) {
  std::vector<Rows> pieces;
  for (const AttentionRange& range : ranges) {
    const bool again = !pieces.empty() && range.key_begin < pieces.back().end();
    if (!again) append(pieces, {range.key_begin, range.keys});
  }
  return pieces;
}

bool is_aligned(const at::Tensor& rows) {
  constexpr int64_t kBytes = 16;
  return reinterpret_cast<uintptr_t>(rows.const_data_ptr()) % kBytes == 0 &&
         rows.stride(0) * static_cast<int64_t>(rows.element_size()) % kBytes == 0;
}

std::string_view why_not_flash(const QueryKeyValue& inputs, const AttentionShape& shape,
                               std::span<const AttentionRange> ranges, const at::Tensor& sinks,
                               int capability) {
  constexpr int64_t kMostDocuments = 65535;  // a dimension of its grids of blocks
  constexpr int64_t kDocumentsOfRange = 3;   // at most, see add_range()
  if (capability < 80) return "the GPU is older than compute capability 8.0";
  if (inputs.q.scalar_type() != at::kBFloat16) return "elements are not bf16";
  if (shape.cap > 0) return "scores are capped";
  if (sinks.defined()) return "there are sinks";
  if (shape.value_size() != shape.head_dim) return "values are not as wide as keys";
  if (shape.head_dim % 8 != 0) return "the size of heads is not a multiple of 8";
  if (shape.head_dim > 256) return "heads have more than 256 elements";
  if (static_cast<int64_t>(ranges.size()) * kDocumentsOfRange > kMostDocuments)
    return "there are too many ranges";
  if (!is_aligned(inputs.q) || !is_aligned(inputs.k) || !is_aligned(inputs.v))
    return "rows are not aligned to 16 bytes";
  return "";
}

}  // namespace stepforge::cuda_plugin
