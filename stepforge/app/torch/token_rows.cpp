// SPDX-License-Identifier: Apache-2.0
#include "stepforge/app/torch/token_rows.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

std::vector<int32_t> int32_values(const SafetensorsFile& file, const TensorEntry& entry) {
  if (entry.dtype != DType::i32) {
    throw FormatError(format("{}: \"{}\" is {}; expected I32", file.path().string(), entry.name,
                             safetensors_name(entry.dtype)));
  }
  std::vector<int32_t> values(static_cast<size_t>(entry.bytes()) / sizeof(int32_t));
  file.read(entry, 0, std::as_writable_bytes(std::span(values)));
  return values;
}

/// The "cu_seqlens" of the file; without one, each row is a document.
std::vector<int32_t> boundaries(const SafetensorsFile& file, const Batch& batch) {
  std::vector<int32_t> ends;
  for (int64_t row = 0; row <= batch.rows; ++row) ends.push_back(static_cast<int32_t>(row * batch.seq_len));
  const TensorEntry* entry = file.find("cu_seqlens");
  if (entry == nullptr) return ends;
  std::vector<int32_t> values = int32_values(file, *entry);
  const bool increasing =
      std::adjacent_find(values.begin(), values.end(), std::greater_equal<>()) == values.end();
  if (values.empty() || values.front() != 0 || values.back() != ends.back() || !increasing ||
      !std::includes(values.begin(), values.end(), ends.begin(), ends.end())) {
    throw FormatError(format("{}: \"cu_seqlens\" must increase from 0 to {} and contain every row's end",
                             file.path().string(), ends.back()));
  }
  return values;
}

/// Positions and labels from tokens and boundaries.
void derive(Batch& batch) {
  batch.positions.resize(batch.tokens.size());
  batch.labels.assign(batch.tokens.size(), kIgnoredLabel);
  for (size_t document = 0; document + 1 < batch.cu_seqlens.size(); ++document) {
    const int32_t begin = batch.cu_seqlens[document];
    const int32_t end = batch.cu_seqlens[document + 1];
    batch.max_document_length = std::max(batch.max_document_length, end - begin);
    for (int32_t token = begin; token < end; ++token) {
      const auto index = static_cast<size_t>(token);
      batch.positions[index] = token - begin;
      if (token + 1 < end) batch.labels[index] = batch.tokens[index + 1];
    }
  }
  batch.valid_labels =
      std::ssize(batch.labels) - std::count(batch.labels.begin(), batch.labels.end(), kIgnoredLabel);
}

}  // namespace

Batch read_token_rows(const std::filesystem::path& path, int64_t vocab) {
  const SafetensorsFile file(path);
  const TensorEntry* entry = file.find("tokens");
  if (entry == nullptr || entry->shape.size() != 2 || entry->shape[0] < 1 || entry->shape[1] < 1) {
    throw FormatError(format("{}: expected a tensor \"tokens\" of shape [rows, length]", path.string()));
  }
  Batch batch;
  batch.rows = entry->shape[0];
  batch.seq_len = entry->shape[1];
  batch.tokens = int32_values(file, *entry);
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    if (batch.tokens[i] < 0 || batch.tokens[i] >= vocab) {
      throw FormatError(format("{}: token {} at position {} is outside the model's vocabulary of {}",
                               path.string(), batch.tokens[i], i, vocab));
    }
  }
  batch.cu_seqlens = boundaries(file, batch);
  for (int64_t row = 0; row < batch.rows; ++row) batch.row_ids.push_back(static_cast<uint64_t>(row));
  derive(batch);
  return batch;
}

Batch one_row(const Batch& batch, int64_t row) {
  const int64_t begin = row * batch.seq_len;
  Batch single;
  single.rows = 1;
  single.seq_len = batch.seq_len;
  single.tokens.assign(batch.tokens.begin() + begin, batch.tokens.begin() + begin + batch.seq_len);
  for (const int32_t boundary : batch.cu_seqlens) {
    if (boundary >= begin && boundary <= begin + batch.seq_len) {
      single.cu_seqlens.push_back(static_cast<int32_t>(boundary - begin));
    }
  }
  single.row_ids = {batch.row_ids.at(static_cast<size_t>(row))};
  derive(single);
  return single;
}

}  // namespace stepforge
