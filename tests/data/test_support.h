// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of this room: folders with files, small datasets.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/data/indexed_dataset_writer.h"
#include "stepforge/data/row_source.h"
#include "stepforge/data/text_source.h"
#include "stepforge/text/tokenizer.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"

namespace stepforge::testing {

using Documents = std::vector<std::vector<int32_t>>;

inline std::shared_ptr<const IndexedDataset> write_dataset(const std::filesystem::path& prefix,
                                                           const Documents& documents,
                                                           TokenType type = TokenType::u16) {
  IndexedDatasetWriter writer(prefix, {type});
  for (const auto& document : documents) writer.add_document(document);
  writer.publish();
  return std::make_shared<IndexedDataset>(prefix);
}

/// Documents of consecutive numbers 0, 1, 2, ... with the given lengths.
inline Documents counting_documents(const std::vector<int64_t>& lengths) {
  Documents documents;
  int32_t next = 0;
  for (const int64_t length : lengths) {
    documents.emplace_back();
    for (int64_t i = 0; i < length; ++i) documents.back().push_back(next++);
  }
  return documents;
}

/// All documents of a source, read in chunks of about `chunk_bytes`.
inline std::vector<std::string> texts_of(const TextSource& source, int64_t chunk_bytes = 1 << 20) {
  std::vector<std::string> documents;
  for (size_t file = 0; file < source.files().size(); ++file) {
    const auto chunks = source.chunks(file, chunk_bytes);
    while (const auto chunk = chunks->next())
      source.read(*chunk, [&](std::string_view text) { documents.emplace_back(text); });
  }
  return documents;
}

/// The same with "! " and the message, from the name of the file on, in place of each record that is malformed.
inline std::vector<std::string> texts_and_faults_of(const TextSource& source, int64_t chunk_bytes = 1 << 20) {
  std::vector<std::string> found;
  const auto on_fault = [&](const auto& message) {
    const std::string text = message();
    found.push_back("! " + text.substr(text.rfind('/') + 1));
  };
  for (size_t file = 0; file < source.files().size(); ++file) {
    const auto chunks = source.chunks(file, chunk_bytes);
    while (const auto chunk = chunks->next())
      source.read(*chunk, [&](std::string_view text) { found.emplace_back(text); }, on_fault);
  }
  return found;
}

/// The message of the error that opening a source or reading all of it must throw.
template <typename Exception>
std::string source_message(const TextSourceOptions& options, int64_t chunk_bytes = 1 << 20) {
  return message_of<Exception>([&] { texts_of(TextSource(options), chunk_bytes); });
}

/// All rows of a source as one batch.
inline Batch batch_of(const RowSource& rows) {
  Batch batch = empty_batch(rows.seq_len(), rows.rows());
  Row row;
  for (int64_t i = 0; i < rows.rows(); ++i) {
    rows.read(i, row);
    append_row(row, static_cast<uint64_t>(i), batch);
  }
  return batch;
}

inline bool same(const Batch& a, const Batch& b) {
  return a.rows == b.rows && a.seq_len == b.seq_len && a.tokens == b.tokens && a.positions == b.positions &&
         a.labels == b.labels && a.cu_seqlens == b.cu_seqlens &&
         a.max_document_length == b.max_document_length && a.row_ids == b.row_ids && a.sources == b.sources &&
         a.valid_labels == b.valid_labels && a.weights == b.weights && a.label_weight == b.label_weight;
}

}  // namespace stepforge::testing
