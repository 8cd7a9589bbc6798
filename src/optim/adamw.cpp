#include "optim/adamw.h"

#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include <ATen/ops/zeros.h>

#include "kernels/adamw.h"
#include "kernels/reduce.h"

namespace stepforge {

AdamW::AdamW(ModelStore& store, ParamGroups groups, double eps)
    : store_(store), groups_(std::move(groups)), eps_(eps) {
  for (size_t i = 0; i < store_.size(); ++i) {
    auto& slots = slots_.emplace_back();
    if (!store_.unit(i).trained()) continue;
    for (auto& slot : slots) slot = at::zeros({store_.unit(i).shard_size()}, at::kFloat);
  }
}

void AdamW::begin_update(double lr_factor, double grad_scale) {
  lr_factor_ = lr_factor;
  grad_scale_ = grad_scale;
}

void AdamW::update(int unit) {
  const auto index = static_cast<size_t>(unit);
  UnitStore& storage = store_.unit(index);
  for (const ParamInterval& interval : groups_.intervals.at(index)) {
    const ParamGroup& group = groups_.groups.at(static_cast<size_t>(interval.group));
    const AdamWSettings settings{group.lr * lr_factor_, group.beta1, group.beta2, eps_,
                                 group.weight_decay,    steps_ + 1,  grad_scale_};
    const ShardRange range = storage.held(interval.first, interval.last);
    adamw_update(storage.master(), storage.gradient(), slots_[index][0], slots_[index][1], range.begin,
                 range.end, settings);
  }
}

namespace {

/// The sums of squares of the chunks of all trained units on this rank, unit after unit.
std::vector<double> chunk_sums(const ModelStore& store) {
  std::vector<double> sums;
  for (size_t i = 0; i < store.size(); ++i) {
    if (!store.unit(i).trained()) continue;
    const at::Tensor& gradient = store.unit(i).gradient();
    const auto chunks = static_cast<size_t>(reduce_chunks(gradient.numel()));
    sums.resize(sums.size() + chunks);
    sum_of_squares_by_chunk(gradient, std::span(sums).last(chunks));
  }
  return sums;
}

}  // namespace

double gradient_norm(const ModelStore& store) {
  const std::vector<double> own = chunk_sums(store);
  const auto ranks = static_cast<size_t>(store.groups().shard().ranks);
  std::vector<double> all(own.size() * ranks);
  if (ranks == 1) {
    all = own;
  } else {
    store.groups().across_shards()->all_gather(std::as_bytes(std::span(own)),
                                               std::as_writable_bytes(std::span(all)));
  }
  // In logical order, unit by unit and there rank by rank: as if one rank held everything.
  double sum = 0.0;
  size_t begin = 0;
  for (size_t i = 0; i < store.size(); ++i) {
    if (!store.unit(i).trained()) continue;
    const auto chunks = static_cast<size_t>(reduce_chunks(store.unit(i).shard_size()));
    double of_unit = 0.0;
    for (size_t rank = 0; rank < ranks; ++rank) {
      const double* first = all.data() + rank * own.size() + begin;
      of_unit = std::accumulate(first, first + chunks, of_unit);
    }
    sum += of_unit;
    begin += chunks;
  }
  return std::sqrt(sum);
}

}  // namespace stepforge
