// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/kv_cache.h"

#include <ATen/ops/zeros.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

KvCache::KvCache(int64_t layers, int64_t rows, int64_t capacity, int64_t kv_heads, int64_t head_dim,
                 int64_t value_dim, const at::TensorOptions& options)
    : rows_(rows), capacity_(capacity) {
  for (int64_t layer = 0; layer < layers; ++layer) {
    keys_.push_back(at::zeros({rows, capacity, kv_heads, head_dim}, options));
    values_.push_back(at::zeros({rows, capacity, kv_heads, value_dim}, options));
  }
}

void KvCache::append(int64_t layer, const at::Tensor& qkv, int64_t count) {
  if (length_ + count > capacity_) {
    throw Error(format("the KV cache has room for {} tokens and holds {}: {} more do not fit", capacity_,
                       length_, count));
  }
  int64_t end = qkv.size(1);
  for (const at::Tensor& cache : {values(layer), keys(layer)}) {  // the last columns first
    const int64_t width = cache.size(2) * cache.size(3);
    end -= width;
    cache.narrow(1, length_, count)
        .copy_(qkv.narrow(1, end, width).view({rows_, count, cache.size(2), cache.size(3)}));
  }
}

}  // namespace stepforge
