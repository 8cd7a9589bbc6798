// SPDX-License-Identifier: Apache-2.0
// Tile sizes and scratch memory of the CPU kernels, which the kernels allocate and the cost descriptors of
// the layers count.
#pragma once

#include <cstdint>

namespace stepforge::cpu {

/// Row length of a block of scores: the number of keys processed at a time.
inline constexpr int64_t kKeyBlock = 96;
/// Queries processed at a time. Divides kKeyBlock, so that no block of keys ends inside a block of queries.
inline constexpr int64_t kQueryBlock = 48;
/// Rows that share one range of keys under the causal mask; divides kQueryBlock.
inline constexpr int64_t kStrip = 12;
/// The number of columns of a block is a multiple of this.
inline constexpr int64_t kColumnUnit = 16;
/// The maximum number of partial sums of a sum over tokens.
inline constexpr int64_t kPartials = 64;
/// Of a product with the weights of experts, a thread computes at most this many tokens at a time.
inline constexpr int64_t kGroupRows = 256;
/// The same of rows of the gradient of weights.
inline constexpr int64_t kGroupWeightRows = 128;
/// The number of them if there are `rows` in all.
constexpr int64_t grouped_weight_rows(int64_t rows) {
  constexpr int64_t kLeast = 16;
  return rows / 16 < kLeast ? kLeast : rows / 16 > kGroupWeightRows ? kGroupWeightRows : rows / 16;
}

constexpr int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// Of the weight gradient of a product of bf16, the most tokens at a time.
inline constexpr int64_t kBf16ProductTokens = 2048;
/// The most columns of the right factor that a product of bf16 [rows, depth] [depth, columns] packs at a time.
constexpr int64_t bf16_product_columns(int64_t depth) {
  constexpr int64_t kUnit = 64;
  constexpr int64_t kMostColumns = 1024;
  constexpr int64_t kMostNumbers = kBf16ProductTokens * kMostColumns;
  const int64_t columns = kMostNumbers / (depth > 0 ? depth : 1) / kUnit * kUnit;
  return columns < kUnit ? kUnit : columns > kMostColumns ? kMostColumns : columns;
}
/// Memory for them, in fp32 numbers.
constexpr int64_t bf16_product_words(int64_t depth, int64_t columns) {
  const int64_t all = round_up(columns, 64);
  const int64_t most = bf16_product_columns(depth);
  return depth * (all < most ? all : most);
}

/// fp32 numbers per token in the packed keys and values of one key-value head, in attention forward.
constexpr int64_t attention_packed_floats(int64_t head_dim, int64_t value_dim) {
  return head_dim + round_up(value_dim, kColumnUnit);
}

/// fp32 numbers of scratch memory per thread in attention forward: queries, outputs, maxima and sums
/// and scores of one block of queries. In matrix tiles queries are read in place, and their place holds the probabilities in bf16.
constexpr int64_t attention_forward_floats(int64_t head_dim, int64_t value_dim) {
  const int64_t queries = round_up(head_dim, kColumnUnit);
  const int64_t most = queries < kKeyBlock / 2 ? kKeyBlock / 2 : queries;
  return round_up(kQueryBlock * (most + round_up(value_dim, kColumnUnit) + 2 + kKeyBlock), kColumnUnit);
}

/// The same in its backward: `per_key` for keys, values and their gradients of one document, `fixed` for one
/// block of queries.
struct AttentionBackwardFloats {
  int64_t per_key;
  int64_t fixed;
};
constexpr AttentionBackwardFloats attention_backward_floats(int64_t head_dim, int64_t value_dim) {
  const int64_t padded = round_up(head_dim, kColumnUnit);
  const int64_t padded_value = round_up(value_dim, kColumnUnit);
  return {2 * padded + padded_value + head_dim + value_dim,
          kQueryBlock * (2 * padded + padded_value + 3 * kKeyBlock + 2)};
}

}  // namespace stepforge::cpu
