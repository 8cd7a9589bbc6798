// SPDX-License-Identifier: Apache-2.0
// Writes an indexed dataset (dataset/indexed_dataset.h), with a loss mask if asked for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "stepforge/base/file_writer.h"
#include "stepforge/dataset/indexed_dataset.h"

namespace stepforge {

/// Throws Error if it cannot be done.
void rename_file(const std::filesystem::path& from, const std::filesystem::path& to);

/// What a dataset stores.
struct DatasetContents {
  TokenType type = TokenType::u16;
  bool loss_mask = false;  ///< which tokens count in the loss (dataset/loss_mask.h)
};

/// Writes a pair in order. Nothing appears under the final names before publish(). Memory: a few MiB, however many
/// documents and tokens there are.
class IndexedDatasetWriter {
 public:
  /// How much has been written.
  struct Position {
    int64_t documents = 0;
    int64_t tokens = 0;
  };

  /// Creates temporary files beside the final ones; the destructor removes them. Throws Error if it cannot.
  IndexedDatasetWriter(std::filesystem::path prefix, const DatasetContents& contents);
  /// A writer that can be resumed: its temporary files stay until publish(), so that a later writer of the
  /// same prefix can continue at a position that save() returned; {} starts from the beginning. Only one may
  /// write at a time. Throws Error if the files hold less than `resume`.
  IndexedDatasetWriter(std::filesystem::path prefix, const DatasetContents& contents, const Position& resume);
  ~IndexedDatasetWriter();
  IndexedDatasetWriter(const IndexedDatasetWriter&) = delete;
  IndexedDatasetWriter& operator=(const IndexedDatasetWriter&) = delete;

  /// `counted`: 1 for each token that counts in the loss, else 0; empty if all count. Throws Error if an id
  /// does not fit the token type, the document has 2^31 tokens or more, or some tokens do not count and the
  /// dataset has no loss mask.
  void add_document(std::span<const int32_t> tokens, std::span<const uint8_t> counted = {});
  /// Flushes all documents to the disk. Only for a writer that can be resumed.
  Position save();
  /// Flushes all files, then renames the .mask, the .bin and last the .idx. An older .idx is removed first, so
  /// that a reader finds matching files or none.
  void publish();

  int64_t documents() const { return documents_; }
  int64_t tokens() const { return tokens_; }
  const std::filesystem::path& prefix() const { return prefix_; }

 private:
  IndexedDatasetWriter(std::filesystem::path prefix, const DatasetContents& contents, const Position& resume,
                       const std::string& staging_suffix, bool keep_staging);
  void check_lengths() const;
  void write_index();
  void add_counted(size_t tokens, std::span<const uint8_t> counted);
  void write_buffers();

  std::filesystem::path prefix_;
  DatasetContents contents_;
  std::filesystem::path bin_staging_;
  std::filesystem::path idx_staging_;
  std::filesystem::path lengths_staging_;
  std::filesystem::path mask_staging_;
  std::filesystem::path counted_staging_;
  std::unique_ptr<FileWriter> bin_;
  std::unique_ptr<FileWriter> lengths_;  ///< of the documents, 32 bits each
  std::unique_ptr<FileWriter> counted_;  ///< only with a loss mask: a byte per token, packed by publish()
  std::string buffer_;
  std::string lengths_buffer_;
  std::string counted_buffer_;
  int64_t documents_ = 0;
  int64_t tokens_ = 0;
  bool keep_staging_;  ///< for a later writer that continues
  bool published_ = false;
};

}  // namespace stepforge
