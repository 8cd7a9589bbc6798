// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/context.h"

#include <algorithm>
#include <numeric>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/data/context_part.h"

namespace stepforge {

namespace {

at::TensorOptions on_host(at::ScalarType type) {
  return at::device(at::kCPU).dtype(type);
}

template <typename T>
at::Tensor view_of(std::vector<T>& values) {
  return at::from_blob(values.data(), {static_cast<int64_t>(values.size())},
                       on_host(c10::CppTypeToScalarType<T>::value));
}

std::vector<at::Tensor> views_of_tokens(std::vector<Batch>& batches) {
  std::vector<at::Tensor> views;
  for (Batch& batch : batches) views.push_back(view_of(batch.tokens));
  return views;
}

/// Some tokens of a document that a rank has, all inside one chunk.
struct Piece {
  int64_t begin = 0;  ///< index in the part
  int64_t size = 0;
  int64_t offset = 0;  ///< in the document
};

/// What the part has of a document; `part` may be joined.
std::vector<Piece> pieces_of(const AttentionRange& document, const ContextPart& part, const Batch& batch) {
  const int64_t row = document.key_begin / batch.row_length();
  const int64_t begin = document.key_begin % batch.row_length();
  int64_t held = row * batch.row_length() / part.degree;
  std::vector<Piece> pieces;
  for (const TokenRange& range : token_ranges(part, batch.row_length())) {
    const int64_t first = std::max(begin, range.begin);
    const int64_t last = std::min(begin + document.keys, range.begin + range.size);
    if (first < last) pieces.push_back({held + first - range.begin, last - first, first - begin});
    held += range.size;
  }
  return pieces;
}

/// Each document that the part has some tokens of, and the others without queries.
std::vector<AttentionRange> ranges_of_part(const std::vector<AttentionRange>& documents,
                                           const ContextPart& part, const Batch& batch) {
  if (part.degree == 1) return documents;
  std::vector<AttentionRange> ranges;
  for (const AttentionRange& document : documents) {
    const std::vector<Piece> pieces = pieces_of(document, part, batch);
    for (const Piece& piece : pieces)
      ranges.push_back({piece.begin, piece.size, document.key_begin, document.keys, piece.offset});
    if (pieces.empty()) ranges.push_back({0, 0, document.key_begin, document.keys, 0});
  }
  return ranges;
}

}  // namespace

BatchTensors::BatchTensors(Batch host_batch, at::Device device)
    : host(std::move(host_batch)),
      tokens(view_of(host.tokens)),
      tokens_ahead(views_of_tokens(host.ahead)),
      positions(view_of(host.positions)),
      labels(view_of(host.labels)),
      weights(host.weights.empty() ? at::Tensor() : view_of(host.weights)),
      row_ids(at::empty({token_count()}, on_host(at::kLong))),
      row_positions(at::empty({token_count()}, on_host(at::kInt))),
      documents(document_ranges(host.cu_seqlens)),
      attention_ranges(ranges_of_part(documents, host.part.joined(), host)) {
  auto* ids = row_ids.data_ptr<int64_t>();
  auto* positions_in_row = row_positions.data_ptr<int32_t>();
  if (host.cu_seqlens.empty() || host.cu_seqlens.back() != host.rows * host.row_length()) {
    throw Error(format("the document boundaries of a batch must end with its number of tokens, {}",
                       host.rows * host.row_length()));
  }
  const std::vector<TokenRange> held = token_ranges(host.part, host.row_length());
  for (int64_t row = 0; row < host.rows; ++row) {
    const auto id = static_cast<int64_t>(host.row_ids.at(static_cast<size_t>(row)));
    std::fill_n(ids + row * host.seq_len, host.seq_len, id);
    for (const TokenRange& range : held) {
      std::iota(positions_in_row, positions_in_row + range.size, static_cast<int32_t>(range.begin));
      positions_in_row += range.size;
    }
  }
  if (host.part.degree > 1) index_parts();
  if (device != at::kCPU) move_to(device);
}

void BatchTensors::index_parts() {
  // Neighbours divide their joined tokens as `heads` parts divide a row.
  const ContextPart divided =
      host.part.heads > 1 ? ContextPart{0, host.part.heads, host.part.head_tail} : host.part;
  const int64_t length = divided.degree * host.seq_len;
  index_in_parts = at::tensor(stepforge::index_in_parts(divided, host.rows, length), on_host(at::kLong));
  index_in_rows = at::empty_like(index_in_parts);
  index_in_rows.index_put_({index_in_parts}, at::arange(index_in_parts.size(0), on_host(at::kLong)));
}

void BatchTensors::move_to(at::Device device) {
  std::vector<at::Tensor*> moved = {&tokens,  &positions,     &labels,         &weights,
                                    &row_ids, &row_positions, &index_in_parts, &index_in_rows};
  for (at::Tensor& later : tokens_ahead) moved.push_back(&later);
  std::erase_if(moved, [](const at::Tensor* tensor) { return !tensor->defined(); });
  constexpr int64_t kAlignment = 16;
  std::vector<int64_t> ends = {0};
  for (const at::Tensor* tensor : moved) {
    const auto bytes = static_cast<int64_t>(tensor->nbytes());
    ends.push_back(ends.back() + (bytes + kAlignment - 1) / kAlignment * kAlignment);
  }
  const at::Tensor packed = at::empty({ends.back()}, on_host(at::kByte).pinned_memory(true));
  const auto part = [&](const at::Tensor& bytes, size_t i) {
    return bytes.narrow(0, ends[i], static_cast<int64_t>(moved[i]->nbytes())).view(moved[i]->scalar_type());
  };
  for (size_t i = 0; i < moved.size(); ++i) part(packed, i).copy_(*moved[i]);
  const at::Tensor copy = packed.to(device, /*non_blocking=*/true);
  for (size_t i = 0; i < moved.size(); ++i) *moved[i] = part(copy, i);
}

std::vector<AttentionRange> BatchTensors::ranges_to(int64_t part) const {
  const ContextPart own_part = host.part.joined();
  ContextPart other = own_part;
  other.index = part;
  std::vector<AttentionRange> ranges;
  for (const AttentionRange& document : documents) {
    // Pieces of one document are adjacent in a part, so those before a query are the first keys.
    const std::vector<Piece> keys = pieces_of(document, other, host);
    for (const Piece& piece : pieces_of(document, own_part, host)) {
      int64_t all = 0;
      int64_t past = 0;
      for (const Piece& seen : keys) {
        all += seen.size;
        past += seen.offset < piece.offset ? seen.size : 0;
      }
      const bool own = part == own_part.index;
      if (own || past > 0) ranges.push_back({piece.begin, piece.size, keys.front().begin, all, past, own});
    }
  }
  return ranges;
}

}  // namespace stepforge
