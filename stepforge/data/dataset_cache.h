// SPDX-License-Identifier: Apache-2.0
// Finished tokenizations, kept by content: the same text with the same tokenizer is tokenized once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "stepforge/data/tokenize.h"

namespace stepforge {

/// A finished entry: the pairs <folder>/train and, if documents are held out, <folder>/validation.
struct CachedDataset {
  std::filesystem::path folder;
  std::shared_ptr<const IndexedDataset> train;
  std::shared_ptr<const IndexedDataset> validation;  ///< null if no document is held out
  DatasetStatistics train_statistics;
  DatasetStatistics validation_statistics;
};

/// The name of the entry: hash of the contents of all files, how documents are cut, the tokenizer, and the
/// split.
std::string cache_key(const TextSource& source, const Tokenizer& tokenizer, const TokenizeOptions& options);

/// Opens the entry of `source` in `cache_dir`, building it first if it is not there. An entry appears by one
/// rename, so it is complete or absent. The next build continues one that was killed or interrupted. A second process that wants the same entry meanwhile waits for the
/// first; where files cannot be locked both build and one result is kept. Throws what tokenize() throws, and
/// Error if the folder cannot be written.
CachedDataset open_cached_dataset(const TextSource& source, const Tokenizer& tokenizer,
                                  const TokenizeOptions& options, const std::filesystem::path& cache_dir,
                                  const TokenizeProgressFunction& progress);

}  // namespace stepforge
