// SPDX-License-Identifier: Apache-2.0
// Tokenizes text on all cores into indexed datasets.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "stepforge/base/json.h"
#include "stepforge/data/indexed_dataset_writer.h"
#include "stepforge/data/record_format.h"
#include "stepforge/data/text_source.h"

namespace stepforge {

struct TokenizeProgress {
  int64_t bytes_done = 0;   ///< of the source files
  int64_t bytes_total = 0;  ///< of the source files
  int64_t tokens = 0;       ///< written so far
  bool waiting = false;     ///< another process is building the same cache entry
  bool verifying = false;   ///< a finished cache entry is checked against its hashes
};
using TokenizeProgressFunction = std::function<void(const TokenizeProgress&)>;

/// Holds out documents for validation: document i is held out if hash(seed, i) < fraction, so every run holds
/// out the same documents.
struct ValidationSplit {
  double fraction = 0.0;  ///< in [0, 1); 0 holds out none
  uint64_t seed = 0;
  bool holds_out(int64_t document) const;
};

/// Sizes of one dataset.
struct DatasetStatistics {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t text_bytes = 0;  ///< UTF-8 bytes of the documents, without end-of-document tokens

  friend bool operator==(const DatasetStatistics&, const DatasetStatistics&) = default;
};

struct TokenizeOptions {
  int workers = 0;  ///< threads; 0 = all cores
  ValidationSplit split{};
  int64_t max_records = 0;                 ///< the first records that are used; 0 = all
  int64_t chunk_bytes = int64_t{1} << 20;  ///< text a thread takes at once; does not affect the result
  int64_t save_bytes = int64_t{64} << 20;  ///< text between two positions that the cache saves
};

struct TokenizeResult {
  DatasetStatistics train;
  DatasetStatistics validation;
};

/// How far a tokenization has got: the text before byte `byte` of file number `file` is done.
struct TokenizePosition {
  size_t file = 0;
  int64_t byte = 0;
  TokenizeResult done;
};

/// Writes the documents of `source` from `start` on, in order, to `train`, and held-out ones to `validation`
/// (may be null if the split holds out none). Nothing is published. Keeps a few chunks per thread in memory.
/// Throws what reading and encoding throw, and UsageError if there is no document at all.
/// `progress` is called on this thread after each chunk and at least once a second.
/// `reached` is called on this thread after each chunk, with a position from which tokenize() can continue.
TokenizeResult tokenize(const TextSource& source, const RecordFormat& records, const TokenizeOptions& options,
                        IndexedDatasetWriter& train, IndexedDatasetWriter* validation,
                        const TokenizeProgressFunction& progress, const TokenizePosition& start = {},
                        const std::function<void(const TokenizePosition&)>& reached = {});

/// The file beside a dataset that describes where it comes from: "<prefix>.json".
std::filesystem::path description_path(const std::filesystem::path& prefix);
/// Writes that file. `source` is free text for people.
void write_description(const std::filesystem::path& prefix, const DatasetStatistics& statistics,
                       const Tokenizer& tokenizer, const std::string& source);

struct DatasetDescription {
  DatasetStatistics statistics;
  std::string tokenizer_fingerprint;
};
/// None if there is no such file, as for datasets that other programs wrote. Throws FormatError if it is
/// malformed or does not match the dataset.
std::optional<DatasetDescription> read_description(const IndexedDataset& dataset);

}  // namespace stepforge
