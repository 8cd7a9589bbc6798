// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/trained_parts.h"

#include <algorithm>

#include <ATen/ops/zeros.h>

namespace stepforge {

TrainedParts::TrainedParts(const ShardLayout& layout)
    : shard_size_(layout.shard_size()), size_(layout.shard_size()) {}

TrainedParts::TrainedParts(const ShardLayout& layout, const std::vector<bool>& trained)
    : TrainedParts(layout) {
  if (std::find(trained.begin(), trained.end(), false) == trained.end()) return;
  size_ = 0;
  for (int rank = 0; rank < layout.shards(); ++rank) {
    std::vector<ShardRange>& ranges = ranges_.emplace_back();
    int64_t elements = 0;
    for (size_t i = 0; i < trained.size(); ++i) {
      if (!trained[i]) continue;
      ranges.push_back(layout.local_range(rank, i, i + 1));
      elements += ranges.back().size();
    }
    size_ = std::max(size_, elements);
  }
}

at::Tensor TrainedParts::pack_joined(const at::Tensor& joined) const {
  if (ranges_.empty()) return joined;
  const auto shards = static_cast<int64_t>(ranges_.size());
  at::Tensor parts = at::zeros({shards * size_}, joined.options());
  for (int64_t rank = 0; rank < shards; ++rank) {
    pack(joined.narrow(0, rank * shard_size_, shard_size_), static_cast<int>(rank),
         parts.narrow(0, rank * size_, size_));
  }
  return parts;
}

at::Tensor TrainedParts::pack_shard(const at::Tensor& shard, int rank) const {
  if (ranges_.empty()) return shard;
  at::Tensor parts = at::zeros({size_}, shard.options());
  pack(shard, rank, parts);
  return parts;
}

void TrainedParts::pack(const at::Tensor& shard, int rank, const at::Tensor& parts) const {
  int64_t at = 0;
  for (const ShardRange& range : ranges_[static_cast<size_t>(rank)]) {
    parts.narrow(0, at, range.size()).copy_(shard.narrow(0, range.begin, range.size()));
    at += range.size();
  }
}

at::Tensor TrainedParts::unpack(const at::Tensor& parts, int rank) const {
  if (ranges_.empty()) return parts;
  at::Tensor shard = at::zeros({shard_size_}, parts.options());
  int64_t at = 0;
  for (const ShardRange& range : ranges_[static_cast<size_t>(rank)]) {
    shard.narrow(0, range.begin, range.size()).copy_(parts.narrow(0, at, range.size()));
    at += range.size();
  }
  return shard;
}

}  // namespace stepforge
