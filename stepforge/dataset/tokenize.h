// SPDX-License-Identifier: Apache-2.0
// Tokenizes text on all cores into indexed datasets.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "stepforge/base/files.h"
#include "stepforge/dataset/build_report.h"
#include "stepforge/dataset/indexed_dataset_writer.h"
#include "stepforge/records/record_format.h"
#include "stepforge/records/text_source.h"

namespace stepforge {

struct TokenizeProgress {
  int64_t bytes_done = 0;   ///< of the source files
  int64_t bytes_total = 0;  ///< of the source files
  int64_t tokens = 0;       ///< written so far
  bool waiting = false;     ///< another process is building the same cache entry
  bool verifying = false;   ///< a finished cache entry is checked against its hashes
};
using TokenizeProgressFunction = std::function<void(const TokenizeProgress&)>;

/// Holds out documents for validation by the hash of their text: wherever a document stands and whatever is added, the
/// same ones are held out, and equal ones stay together. A larger fraction holds out more of the same.
struct ValidationSplit {
  double fraction = 0.0;  ///< in [0, 1); 0 holds out none
  uint64_t seed = 0;
  bool holds_out(const Hash128& text) const;
};

struct TokenizeOptions {
  int workers = 0;  ///< threads; 0 = all cores
  ValidationSplit split{};
  int64_t max_records = 0;      ///< the first records that are used, malformed ones included; 0 = all
  bool deduplicate = false;     ///< drop documents whose text occurred before in the source
  int64_t max_bad_records = 0;  ///< so many malformed records are left out; one more is an error
  /// Text a thread takes at once; less if there are many threads. Does not affect the result.
  int64_t chunk_bytes = int64_t{1} << 20;
  int64_t save_bytes = int64_t{64} << 20;  ///< text between two positions that a build saves
};

/// How far a tokenization has got: the text before byte `byte` of file number `file` is done.
struct TokenizePosition {
  size_t file = 0;
  int64_t byte = 0;
  TokenizeResult done;
};

/// Where documents go, in order.
struct TokenizeOutput {
  IndexedDatasetWriter& train;
  /// The held-out ones; may be null if the split holds out none.
  IndexedDatasetWriter* validation = nullptr;
  /// Whether a document with this hash is new, else it is dropped; empty: all are. The hash is that of the record: of the
  /// text, or of the JSON of a conversation as it was written.
  std::function<bool(const Hash128&)> is_new{};
};

/// Writes the documents of `source` from `start` on. Nothing is published. In memory are about 4 MiB of text at a time and
/// what it is encoded as, or one document if that is larger, for which up to sixteen times its size is needed.
/// Throws what reading and encoding throw, FormatError naming the first malformed record if there are more than
/// options.max_bad_records, and UsageError if there is no document at all.
/// `progress` is called on this thread after each chunk and at least once a second.
/// `reached` is called on this thread after each chunk, with a position from which tokenize() can continue.
TokenizeResult tokenize(const TextSource& source, const RecordFormat& records, const TokenizeOptions& options,
                        const TokenizeOutput& output, const TokenizeProgressFunction& progress = {},
                        const TokenizePosition& start = {},
                        const std::function<void(const TokenizePosition&)>& reached = {});

}  // namespace stepforge
