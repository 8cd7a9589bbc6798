// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/functions.h"
#include "stepforge/nn/kv_cache.h"

namespace stepforge {

void attend_cached(const at::Tensor& qkv, const AttentionShape& shape, const Context& context, int64_t layer,
                   const at::Tensor& out, const at::Tensor& sinks) {
  KvCache& cache = *context.cache;
  const int64_t count = qkv.size(0) / cache.rows();
  cache.append(layer, qkv, count);
  const at::Tensor queries =
      qkv.narrow(1, 0, shape.q_width()).contiguous().view({cache.rows(), count, shape.q_width()});
  const std::vector<int64_t> past(static_cast<size_t>(cache.rows()), cache.length());
  attention_cached(queries, cache.keys(layer), cache.values(layer), past, shape,
                   out.view({cache.rows(), count, shape.out_width()}), sinks);
}

}  // namespace stepforge
