// SPDX-License-Identifier: Apache-2.0
// The cache of tokenized datasets, keyed by content: the same text is tokenized once with the same tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "stepforge/dataset/tokenize.h"

namespace stepforge {

/// A finished entry: the pairs <folder>/train and, if documents are held out, <folder>/validation.
struct CachedDataset {
  std::filesystem::path folder;
  std::shared_ptr<const IndexedDataset> train;
  std::shared_ptr<const IndexedDataset> validation;  ///< null if no document is held out
  DatasetStatistics train_statistics;
  DatasetStatistics validation_statistics;
  TokenizeResult report;  ///< what was left out and why
};

/// Opens the entry of `source` in `cache_dir`, whose name is DatasetBuild::fingerprint(); builds it first if it does not
/// exist. An entry appears by one
/// rename, so it is complete or absent. A build that was killed or interrupted is continued by the next one.
/// A second process that needs the same entry waits for the first; where files cannot be locked, both build
/// it and one result is kept. Every byte of an entry is checked against its hash. Throws what tokenize()
/// throws, and Error if the folder cannot be written or the entry is damaged.
CachedDataset open_cached_dataset(const TextSource& source, const RecordFormat& records,
                                  const TokenizeOptions& options, const std::filesystem::path& cache_dir,
                                  const TokenizeProgressFunction& progress);

}  // namespace stepforge
