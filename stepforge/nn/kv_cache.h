// SPDX-License-Identifier: Apache-2.0
// The keys and values of all tokens so far, for generation.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace stepforge {

/// One sequence per row. The keys of a layer are [rows, capacity, kv_heads, head_dim] in the compute dtype on the compute device, its values
/// [rows, capacity, kv_heads, value_dim]; the first length() positions are filled.
class KvCache {
 public:
  KvCache(int64_t layers, int64_t rows, int64_t capacity, int64_t kv_heads, int64_t head_dim,
          int64_t value_dim, const at::TensorOptions& options);

  /// Stores the rotated keys and the values of `count` new tokens per row at positions length() and up.
  /// `qkv`: [rows * count, queries of any width, then keys and values]. Throws Error if length() + count exceeds the
  /// capacity.
  void append(int64_t layer, const at::Tensor& qkv, int64_t count);
  /// Adds `count` to length(). Call it after all layers have appended.
  void advance(int64_t count) { length_ += count; }

  int64_t length() const { return length_; }
  int64_t rows() const { return rows_; }
  const at::Tensor& keys(int64_t layer) const { return keys_.at(static_cast<size_t>(layer)); }
  const at::Tensor& values(int64_t layer) const { return values_.at(static_cast<size_t>(layer)); }

 private:
  int64_t rows_;
  int64_t capacity_;
  int64_t length_ = 0;
  std::vector<at::Tensor> keys_;
  std::vector<at::Tensor> values_;
};

}  // namespace stepforge
