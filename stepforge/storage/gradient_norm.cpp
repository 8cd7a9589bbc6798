// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/gradient_norm.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>

#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

namespace {

at::Tensor empty_terms(at::IntArrayRef shape, const at::Tensor& like) {
  return at::empty(shape, like.options().dtype(at::kDouble));
}

/// Joins the terms of elements [begin, end) of `flat` to those of their chunks.
void add_terms(const at::Tensor& flat, int64_t begin, int64_t end, NormType type, const at::Tensor& terms) {
  while (begin < end) {
    // Up to the next border of chunks, then whole chunks.
    const int64_t rest = begin % kReduceChunk;
    const int64_t stop = rest == 0 ? end : std::min(end, begin - rest + kReduceChunk);
    const at::Tensor part = empty_terms({reduce_chunks(stop - begin)}, terms);
    norm_terms_by_chunk(flat.narrow(0, begin, stop - begin), type, part);
    at::Tensor chunks = terms.narrow(0, begin / kReduceChunk, part.numel());
    if (type == NormType::inf) {
      at::maximum_out(chunks, chunks, part);
    } else {
      chunks.add_(part);
    }
    begin = stop;
  }
}

/// The terms of the parameters that this rank counts, by chunk. Where the gradient is.
void counted_terms(const UnitStore& unit, NormType type, const at::Tensor& terms) {
  const std::vector<bool>& counted = unit.layout().counted;
  const at::Tensor& gradient = unit.gradient();
  if (std::ranges::find(counted, false) == counted.end()) return norm_terms_by_chunk(gradient, type, terms);
  terms.zero_();
  for (size_t i = 0; i < counted.size(); ++i) {
    const ShardRange range = unit.local_range(i, i + 1);
    if (unit.layout().counts(i)) add_terms(gradient, range.begin, range.end, type, terms);
  }
}

/// The terms of chunks of a model's gradients.
struct ChunkTerms {
  std::vector<int64_t> units;    ///< the number of chunks of each trained unit
  std::vector<int64_t> numbers;  ///< of these units in the whole model
  at::Tensor parts;              ///< [ranks, chunks]: those of each rank, unit by unit
};

ChunkTerms own_terms(const ModelStore& store, NormType type, const at::Tensor& like) {
  std::vector<const UnitStore*> trained;
  ChunkTerms terms;
  int64_t all = 0;
  for (size_t i = 0; i < store.size(); ++i) {
    if (!store.unit(i).trained()) continue;
    trained.push_back(&store.unit(i));
    terms.units.push_back(reduce_chunks(store.unit(i).gradient().numel()));
    terms.numbers.push_back(store.unit(i).layout().number);
    all += terms.units.back();
  }
  terms.parts = empty_terms({1, all}, like);
  int64_t begin = 0;
  bool waited = false;
  for (size_t i = 0; i < trained.size(); ++i) {
    const at::Tensor of_unit = terms.parts.view({all}).narrow(0, begin, terms.units[i]);
    if (const at::Tensor& gradient = trained[i]->gradient(); gradient.device() == of_unit.device()) {
      counted_terms(*trained[i], type, of_unit);
    } else {
      // The gradients of all offloaded units are on their way to the host.
      if (!std::exchange(waited, true)) wait_for_device(of_unit.device());
      const at::Tensor on_host = empty_terms(of_unit.sizes(), gradient);
      counted_terms(*trained[i], type, on_host);
      of_unit.copy_(on_host);
    }
    begin += terms.units[i];
  }
  return terms;
}

/// `own` of every rank, one after the other in the first dimension.
at::Tensor of_all_ranks(Communicator* shards, const at::Tensor& own) {
  if (shards == nullptr) return own;
  std::vector<int64_t> shape = own.sizes().vec();
  shape.at(0) *= shards->size();
  at::Tensor all = at::empty(shape, own.options());
  shards->all_gather(bytes_of(own), bytes_of(all));
  return all;
}

/// [units]: combines the chunks of each unit rank by rank, the order of a single rank that holds all shards.
at::Tensor join_chunks(const ChunkTerms& chunks, NormType type, const at::Tensor& like) {
  at::Tensor units = empty_terms({std::ssize(chunks.units)}, like).zero_();
  int64_t begin = 0;
  for (size_t u = 0; u < chunks.units.size(); ++u) {
    for (int64_t rank = 0; rank < chunks.parts.size(0); ++rank) {
      join_norm_terms(type, chunks.parts.select(0, rank).narrow(0, begin, chunks.units[u]),
                      units.select(0, static_cast<int64_t>(u)));
    }
    begin += chunks.units[u];
  }
  return units;
}

/// The chunks that this rank has, or all of them.
ChunkTerms exchanged_terms(const ModelStore& store, NormType type, NormExchange exchange,
                           Communicator* shards, const at::Tensor& like) {
  ChunkTerms chunks = own_terms(store, type, like);
  if (exchange == NormExchange::chunks) chunks.parts = of_all_ranks(shards, chunks.parts);
  return chunks;
}

}  // namespace

void norm_terms(const at::Tensor& gradient, NormType type, const at::Tensor& terms) {
  const at::Tensor by_chunk = empty_terms({reduce_chunks(gradient.numel())}, terms);
  norm_terms_by_chunk(gradient.reshape({-1}).contiguous(), type, by_chunk);
  join_norm_terms(type, by_chunk, terms.zero_());
}

void join_over_shards(Communicator* shards, NormType type, const at::Tensor& terms) {
  if (shards == nullptr) return;
  const at::Tensor all = of_all_ranks(shards, terms.view({1}));
  join_norm_terms(type, all, terms.zero_());
}

void join_units(NormType type, const at::Tensor& terms, const at::Tensor& total) {
  total.zero_();
  for (int64_t u = 0; u < terms.numel(); ++u) join_norm_terms(type, terms.select(0, u), total);
}

void gradient_norm_terms(const ModelStore& store, NormType type, NormExchange exchange, Communicator* shards,
                         const at::Tensor& terms) {
  const ChunkTerms chunks = exchanged_terms(store, type, exchange, shards, terms);
  join_units(type, join_chunks(chunks, type, terms), terms);
  if (exchange == NormExchange::ranks) join_over_shards(shards, type, terms);
}

void unit_norm_terms(const ModelStore& store, NormType type, NormExchange exchange, Communicator* shards,
                     const at::Tensor& terms) {
  const ChunkTerms chunks = exchanged_terms(store, type, exchange, shards, terms);
  const at::Tensor units = join_chunks(chunks, type, terms);
  terms.zero_();
  for (size_t u = 0; u < chunks.numbers.size(); ++u)
    terms.select(0, chunks.numbers[u]).copy_(units.select(0, static_cast<int64_t>(u)));
  if (exchange == NormExchange::ranks && shards != nullptr) join_unit_terms(*shards, type, terms);
}

void join_unit_terms(Communicator& ranks, NormType type, const at::Tensor& terms) {
  const at::Tensor all = of_all_ranks(&ranks, terms.view({1, -1}));
  terms.zero_();
  for (int64_t u = 0; u < terms.numel(); ++u)
    join_norm_terms(type, all.select(1, u).contiguous(), terms.select(0, u));
}

}  // namespace stepforge
