// SPDX-License-Identifier: Apache-2.0
// The file beside a dataset that says where it comes from: "<prefix>.json".
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "stepforge/base/json.h"
#include "stepforge/dataset/build_report.h"
#include "stepforge/dataset/indexed_dataset.h"
#include "stepforge/dataset/tokenize.h"
#include "stepforge/records/record_format.h"

namespace stepforge {

/// One file that a dataset was made of.
struct SourceFile {
  std::string path;
  int64_t bytes = 0;
  std::string hash;  ///< content_hash
};

struct DatasetDescription {
  DatasetStatistics statistics;
  std::string tokenizer_fingerprint;
  int64_t vocab_size = 0;
  std::string source;  ///< free text for people
  /// The rest is missing in files of versions before the report.
  std::string build;    ///< hash of all that decides the dataset: contents, tokenizer, format and options
  std::string program;  ///< version of Stepforge
  Json options = Json::object();    ///< what `build` covers, for people
  std::vector<SourceFile> files{};  ///< the first thousand
  int64_t files_in_all = 0;
  TokenizeResult report{};  ///< of the whole build, training and validation
};

std::filesystem::path description_path(const std::filesystem::path& prefix);
void write_description(const std::filesystem::path& prefix, const DatasetDescription& description);

/// The file `path`. Throws FormatError if it is malformed, Error if it cannot be read.
DatasetDescription read_description_file(const std::filesystem::path& path);
/// None if there is no such file, as for datasets that other programs wrote. Throws FormatError if it is
/// malformed or does not match the dataset.
std::optional<DatasetDescription> read_description(const IndexedDataset& dataset);

/// What is known before the first document: all but the statistics and the report. `hashes`: those of the source's files.
DatasetDescription describe_build(const TextSource& source, const std::vector<std::string>& hashes,
                                  const RecordFormat& records, const TokenizeOptions& options);

}  // namespace stepforge
