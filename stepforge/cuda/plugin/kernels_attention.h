// SPDX-License-Identifier: Apache-2.0
// Attention by libtorch's flash kernels (Dao, "FlashAttention-2", 2023), which are operations of it by name: no scores in memory.
//
// A call of flash takes documents: the boundaries of their queries and those of their keys, each document after the one before. If the call is
// causal, the last query of a document sees its last key. So a range (kernels/attention.h) is a document whose keys end with the last one that
// its last query sees. Rows that are in no range become documents without keys, or without queries; flash leaves some of their
// results unwritten, and nobody reads them. Ranges that share keys need several calls.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "stepforge/kernels/attention.h"

namespace stepforge::cuda_plugin {

/// Adjacent rows of a tensor.
struct Rows {
  int64_t begin = 0;
  int64_t count = 0;

  int64_t end() const { return begin + count; }
  bool operator==(const Rows&) const = default;
};

/// A call of flash for some ranges, all causal or none, in ascending order of queries and of keys. At least one has queries.
struct FlashPass {
  bool causal = true;
  std::vector<int32_t> query_bounds = {0};  ///< of documents; row 0 is the first one of `queries`
  std::vector<int32_t> key_bounds = {0};    ///< likewise of `keys`
  int64_t longest_queries = 0;              ///< of all documents
  int64_t longest_keys = 0;
  std::vector<Rows> queries = {};  ///< those of ranges, as few pieces as possible
  std::vector<Rows> keys = {};     ///< those that their queries see

  int64_t documents() const { return static_cast<int64_t>(query_bounds.size()) - 1; }
};

/// The calls for ranges that kernels/attention.h allows, as few as taking each range in the first one that fits makes.
/// window: AttentionShape::window.
std::vector<FlashPass> flash_passes(std::span<const AttentionRange> ranges, int64_t window);

/// The keys of the ranges' documents, seen or not, as few pieces as possible.
std::vector<Rows> document_keys(std::span<const AttentionRange> ranges);

/// Whether flash can load these rows: 16 bytes at a time.
bool is_aligned(const at::Tensor& rows);

/// "" if flash serves, otherwise why not. inputs: checked by kernels/attention.h. capability: compute_capability() (launch.h).
std::string_view why_not_flash(const QueryKeyValue& inputs, const AttentionShape& shape,
                               std::span<const AttentionRange> ranges, const at::Tensor& sinks,
                               int capability);

/// attention_forward() and attention_backward() of kernels/attention.h, without sinks, by flash. It must serve.
void flash_attention_forward(const QueryKeyValue& inputs, const AttentionShape& shape,
                             std::span<const AttentionRange> ranges, const at::Tensor& out,
                             const at::Tensor& lse);
/// lse and out may be those of a forward pass with sinks. Sums have one order in libtorch's mode for deterministic algorithms, which plugin.cpp sets.
void flash_attention_backward(const at::Tensor& grad_out, const QueryKeyValue& inputs, const at::Tensor& out,
                              const at::Tensor& lse, const AttentionShape& shape,
                              std::span<const AttentionRange> ranges, const QueryKeyValue& gradients);

}  // namespace stepforge::cuda_plugin
