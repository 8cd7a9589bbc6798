// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/gradient_norm.h"

#include <algorithm>
#include <vector>

#include "stepforge/comm/gather.h"

namespace stepforge {

namespace {

std::vector<double> terms_by_chunk(const at::Tensor& flat, NormType type) {
  std::vector<double> terms(static_cast<size_t>(reduce_chunks(flat.numel())));
  norm_terms_by_chunk(flat, type, terms);
  return terms;
}

/// Joins the terms of elements [begin, end) of `flat` to those of their chunks.
void add_terms(const at::Tensor& flat, int64_t begin, int64_t end, NormType type,
               std::vector<double>& terms) {
  while (begin < end) {
    // Up to the next border of chunks, then whole chunks.
    const int64_t rest = begin % kReduceChunk;
    const int64_t stop = rest == 0 ? end : std::min(end, begin - rest + kReduceChunk);
    const std::vector<double> part = terms_by_chunk(flat.narrow(0, begin, stop - begin), type);
    for (size_t i = 0; i < part.size(); ++i) {
      double& chunk = terms.at(static_cast<size_t>(begin / kReduceChunk) + i);
      chunk = join_norm_terms(type, chunk, part[i]);
    }
    begin = stop;
  }
}

/// The terms of the parameters that this rank counts.
std::vector<double> counted_terms(const UnitStore& unit, NormType type) {
  const std::vector<bool>& counted = unit.layout().counted;
  const at::Tensor& gradient = unit.gradient();
  if (std::ranges::find(counted, false) == counted.end()) return terms_by_chunk(gradient, type);
  std::vector<double> terms(static_cast<size_t>(reduce_chunks(gradient.numel())), 0.0);
  for (size_t i = 0; i < counted.size(); ++i) {
    const ShardRange range = unit.local_range(i, i + 1);
    if (unit.layout().counts(i)) add_terms(gradient, range.begin, range.end, type, terms);
  }
  return terms;
}

/// The norm terms of this rank's chunks, unit by unit.
std::vector<std::vector<double>> terms_by_unit(const ModelStore& store, NormType type) {
  std::vector<std::vector<double>> terms;
  for (size_t i = 0; i < store.size(); ++i) {
    if (store.unit(i).trained()) terms.push_back(counted_terms(store.unit(i), type));
  }
  return terms;
}

double join(NormType type, double joined, std::span<const double> terms) {
  for (const double term : terms) joined = join_norm_terms(type, joined, term);
  return joined;
}

/// `own` of every rank, concatenated.
std::vector<double> of_all_ranks(Communicator* shards, const std::vector<double>& own) {
  return shards == nullptr ? own : gather_values(*shards, own);
}

/// Combines unit by unit, and in each unit rank by rank: the order of a single rank that holds all shards.
double join_by_chunks(Communicator* shards, NormType type, const std::vector<std::vector<double>>& terms) {
  std::vector<double> own;
  for (const auto& unit : terms) own.insert(own.end(), unit.begin(), unit.end());
  const std::vector<double> all = of_all_ranks(shards, own);
  double joined = 0.0;
  size_t begin = 0;
  for (const auto& unit : terms) {
    double of_unit = 0.0;
    for (size_t part = begin; part < all.size(); part += own.size()) {
      of_unit = join(type, of_unit, std::span(all).subspan(part, unit.size()));
    }
    joined = join_norm_terms(type, joined, of_unit);
    begin += unit.size();
  }
  return joined;
}

double join_by_ranks(Communicator* shards, NormType type, const std::vector<std::vector<double>>& terms) {
  double own = 0.0;
  for (const auto& unit : terms) own = join_norm_terms(type, own, join(type, 0.0, unit));
  return join_over_shards(shards, type, own);
}

}  // namespace

double norm_terms(const at::Tensor& gradient, NormType type) {
  return join(type, 0.0, terms_by_chunk(gradient.reshape({-1}).contiguous(), type));
}

double join_over_shards(Communicator* shards, NormType type, double own) {
  return join(type, 0.0, of_all_ranks(shards, {own}));
}

double gradient_norm_terms(const ModelStore& store, NormType type, NormExchange exchange,
                           Communicator* shards) {
  const auto terms = terms_by_unit(store, type);
  return exchange == NormExchange::chunks ? join_by_chunks(shards, type, terms)
                                          : join_by_ranks(shards, type, terms);
}

double clip_coefficient(double norm, double max_norm) {
  if (max_norm <= 0.0) return 1.0;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace stepforge
