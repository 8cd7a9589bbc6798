// SPDX-License-Identifier: Apache-2.0
#include "stepforge/dataset/dataset_description.h"

#include <algorithm>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/base/staged.h"
#include "stepforge/base/version.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

/// To be raised when the same text and options make other documents, or the layout of a cache entry changes.
constexpr int kBuildVersion = 5;
constexpr size_t kListedFiles = 1000;
constexpr int64_t kMaxDescriptionBytes = int64_t{16} << 20;

Json options_of(const TextSource& source, const RecordFormat& records, const TokenizeOptions& options) {
  Json json = {{"records", records.description()},
               {"documents", document_mode_name(source.options().mode)},
               {"deduplicate", options.deduplicate}};
  if (source.options().field) json["field"] = *source.options().field;
  if (options.max_records > 0) json["max_records"] = options.max_records;
  if (options.split.fraction > 0.0) {
    json["validation_fraction"] = options.split.fraction;
    json["seed"] = options.split.seed;
  }
  return json;
}

Json files_json(const DatasetDescription& description) {
  Json files = Json::array();
  for (const SourceFile& file : description.files)
    files.push_back({{"path", file.path}, {"bytes", file.bytes}, {"hash", file.hash}});
  return {{"count", description.files_in_all}, {"first", std::move(files)}};
}

void read_files(const JsonReader& json, DatasetDescription& description) {
  description.files_in_all = json["count"].count();
  const JsonReader files = json["first"];
  if (files.size() > kListedFiles) files.fail("too many files");
  for (size_t i = 0; i < files.size(); ++i) {
    const JsonReader file = files.at(i);
    description.files.push_back({file["path"].text(), file["bytes"].count(), file["hash"].text()});
  }
}

}  // namespace

fs::path description_path(const fs::path& prefix) {
  return with_suffix(prefix, ".json");
}

void write_description(const fs::path& prefix, const DatasetDescription& description) {
  const DatasetStatistics& statistics = description.statistics;
  const Json json = {
      {"documents", statistics.documents},    {"tokens", statistics.tokens},
      {"text_bytes", statistics.text_bytes},  {"tokenizer_fingerprint", description.tokenizer_fingerprint},
      {"vocab_size", description.vocab_size}, {"source", description.source},
      {"build", description.build},           {"program", description.program},
      {"options", description.options},       {"files", files_json(description)},
      {"report", to_json(description.report)}};
  // Paths need not be UTF-8.
  write_file_atomic(description_path(prefix),
                    json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

DatasetDescription read_description_file(const fs::path& path) {
  const Json json = read_json_file(path, {.max_bytes = kMaxDescriptionBytes, .max_depth = 16});
  const JsonReader reader(json, path.string());
  DatasetDescription description;
  description.statistics = {reader["documents"].count(), reader["tokens"].count(),
                            reader["text_bytes"].count()};
  description.tokenizer_fingerprint = reader["tokenizer_fingerprint"].text();
  description.vocab_size = reader.integer_or("vocab_size", 0, 0);
  description.source = reader.text_or("source", "");
  description.build = reader.text_or("build", "");
  if (description.build.empty()) return description;
  description.program = reader.text_or("program", "");
  description.options = reader["options"].object().json();
  read_files(reader["files"], description);
  description.report = tokenize_result_from(reader["report"]);
  return description;
}

std::optional<DatasetDescription> read_description(const IndexedDataset& dataset) {
  if (dataset.prefix().empty()) return std::nullopt;  // not a pair
  const fs::path path = description_path(dataset.prefix());
  if (!fs::exists(path)) return std::nullopt;
  DatasetDescription description = read_description_file(path);
  const DatasetIndex& index = dataset.index();
  if (description.statistics.documents != index.documents() ||
      description.statistics.tokens != index.tokens()) {
    throw FormatError(
        format("{} states {} documents and {} tokens, but the .bin/.idx pair has {} and {}: they do not "
               "belong together; build the dataset again",
               path.string(), description.statistics.documents, description.statistics.tokens,
               index.documents(), index.tokens()));
  }
  return description;
}

DatasetDescription describe_build(const TextSource& source, const std::vector<std::string>& hashes,
                                  const RecordFormat& records, const TokenizeOptions& options) {
  DatasetDescription description;
  description.tokenizer_fingerprint = records.tokenizer().fingerprint();
  description.vocab_size = records.tokenizer().vocab_size();
  description.source = source.description();
  description.program = std::string(version());
  description.options = options_of(source, records, options);
  description.build = content_hash(format("version {}\n{}\n{}\n{}", kBuildVersion, source.content_key(hashes),
                                          records.fingerprint(), description.options.dump()));
  description.files_in_all = std::ssize(source.files());
  for (size_t i = 0; i < std::min(kListedFiles, hashes.size()); ++i) {
    const TextFile& file = source.files()[i];
    description.files.push_back({file.path.string(), file.bytes, hashes[i]});
  }
  return description;
}

}  // namespace stepforge
