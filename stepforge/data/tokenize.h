// SPDX-License-Identifier: Apache-2.0
// Text to token ids on all cores, into indexed datasets; and the cache of finished ones.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "stepforge/base/json.h"
#include "stepforge/data/indexed_dataset.h"
#include "stepforge/data/text_source.h"
#include "stepforge/text/tokenizer.h"

namespace stepforge {

struct TokenizeProgress {
  int64_t bytes_done = 0;   ///< of the source files
  int64_t bytes_total = 0;  ///< of the source files
  int64_t tokens = 0;       ///< written so far
  bool waiting = false;     ///< another process is building the same cache entry; nothing is done here
};
using TokenizeProgressFunction = std::function<void(const TokenizeProgress&)>;

/// Holds out documents for validation: document i is held out if hash(seed, i) < fraction. The same documents
/// on each run.
struct ValidationSplit {
  double fraction = 0.0;  ///< in [0, 1); 0 holds out none
  uint64_t seed = 0;
  bool holds_out(int64_t document) const;
};

/// What is known about one dataset of a pair.
struct DatasetStatistics {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t text_bytes = 0;  ///< UTF-8 bytes of the documents, without end-of-document tokens

  friend bool operator==(const DatasetStatistics&, const DatasetStatistics&) = default;
};

struct TokenizeOptions {
  bool append_eos = true;  ///< after each document, if the tokenizer has an end-of-text token
  int workers = 0;         ///< threads; 0 = all cores
  ValidationSplit split{};
  int64_t chunk_bytes = int64_t{1} << 20;  ///< text a thread takes at once; has no influence on the result
  int64_t save_bytes = int64_t{64} << 20;  ///< text between two positions that the cache saves
};

struct TokenizeResult {
  DatasetStatistics train;
  DatasetStatistics validation;
};

/// How far a tokenization has come: the text before byte `byte` of file number `file` is done.
struct TokenizePosition {
  size_t file = 0;
  int64_t byte = 0;
  TokenizeResult done;
};

/// Writes the documents of `source` from `start` on, in order, into `train`, held-out ones into `validation`
/// (may be null if the split holds out none). Nothing is published. Holds a few chunks per thread in memory.
/// Throws what reading and encoding throw, and UsageError if there is no document at all. On this thread
/// `progress` is called after each chunk, and at least once a second as a sign of life; `reached` is called
/// after each chunk with a position from which tokenize() can continue.
TokenizeResult tokenize(const TextSource& source, const Tokenizer& tokenizer, const TokenizeOptions& options,
                        IndexedDatasetWriter& train, IndexedDatasetWriter* validation,
                        const TokenizeProgressFunction& progress, const TokenizePosition& start = {},
                        const std::function<void(const TokenizePosition&)>& reached = {});

/// The file beside a pair that describes where it comes from: "<prefix>.json".
std::filesystem::path description_path(const std::filesystem::path& prefix);
/// Writes it. `source` is free text for the reader.
void write_description(const std::filesystem::path& prefix, const DatasetStatistics& statistics,
                       const Tokenizer& tokenizer, const std::string& source);

struct DatasetDescription {
  DatasetStatistics statistics;
  std::string tokenizer_fingerprint;
};
/// None if there is no such file: pairs made by others have none. Throws FormatError if it is malformed or
/// does not fit the pair.
std::optional<DatasetDescription> read_description(const IndexedDataset& dataset);

}  // namespace stepforge
