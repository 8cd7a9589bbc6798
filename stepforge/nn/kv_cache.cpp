// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/kv_cache.h"

#include <ATen/ops/zeros.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

KvCache::KvCache(int64_t layers, int64_t rows, int64_t capacity, int64_t kv_heads, int64_t head_dim,
                 at::ScalarType dtype)
    : rows_(rows), capacity_(capacity), kv_heads_(kv_heads), head_dim_(head_dim) {
  for (int64_t layer = 0; layer < layers; ++layer) {
    keys_.push_back(at::zeros({rows, capacity, kv_heads, head_dim}, dtype));
    values_.push_back(at::zeros({rows, capacity, kv_heads, head_dim}, dtype));
  }
}

void KvCache::append(int64_t layer, const at::Tensor& qkv, int64_t count) {
  if (length_ + count > capacity_) {
    throw Error(format("the KV cache has room for {} tokens and holds {}: {} more do not fit", capacity_,
                       length_, count));
  }
  const int64_t kv_width = kv_heads_ * head_dim_;
  const int64_t query_width = qkv.size(1) - 2 * kv_width;
  const auto part = [&](int64_t first) {
    return qkv.narrow(1, first, kv_width).view({rows_, count, kv_heads_, head_dim_});
  };
  keys(layer).narrow(1, length_, count).copy_(part(query_width));
  values(layer).narrow(1, length_, count).copy_(part(query_width + kv_width));
}

}  // namespace stepforge
