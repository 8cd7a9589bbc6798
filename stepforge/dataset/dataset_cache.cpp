// SPDX-License-Identifier: Apache-2.0
#include "stepforge/dataset/dataset_cache.h"

#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/file_record.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/base/staged.h"
#include "stepforge/dataset/build_folder.h"
#include "stepforge/dataset/dataset_build.h"
#include "stepforge/dataset/dataset_description.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kHashesFile = "hashes.json";

void write_hashes(const fs::path& folder) {
  std::vector<FileRecord> files;
  for (const fs::path& path : entries_of(folder)) {
    if (path.filename() != kHashesFile && path.filename() != kFinishedFile)
      files.push_back(file_record(path));
  }
  write_file_atomic(folder / kHashesFile, file_records_to_json(files).dump(2) + "\n");
}

/// Throws FormatError naming the first file that is not as it was written, or of whose parts no hash is
/// stored.
void require_hashes(const fs::path& folder, const std::function<void()>& on_chunk) {
  const fs::path path = folder / kHashesFile;
  if (!is_regular_file_itself(path)) throw FormatError(format("{} is missing", path.string()));
  const Json hashes = read_json_file(path, {.max_bytes = 65536, .max_depth = 4});
  std::set<std::string> listed;
  for (const FileRecord& file : file_records_from_json(JsonReader(hashes, path.string()))) {
    const std::string fault = file_fault(folder / file.name, file, on_chunk);
    if (!fault.empty()) throw FormatError(format("{}: {}", (folder / file.name).string(), fault));
    listed.insert(file.name);
  }
  for (const fs::path& file : entries_of(folder)) {
    const bool is_part = file.stem() == kTrainPart || file.stem() == kValidationPart;
    if (is_part && !listed.contains(file.filename())) {
      throw FormatError(format("{} does not list {}", path.string(), file.filename().string()));
    }
  }
}

std::shared_ptr<const IndexedDataset> open_part(const fs::path& prefix, DatasetStatistics& statistics,
                                                TokenizeResult& report) {
  auto dataset = std::make_shared<IndexedDataset>(prefix);
  const auto description = read_description(*dataset);
  if (!description) throw FormatError(format("{} is missing", description_path(prefix).string()));
  statistics = description->statistics;
  report = description->report;
  return dataset;
}

void build_entry(const DatasetBuild& build, const fs::path& entry, const BuildLock& lock,
                 const TokenizeProgressFunction& progress) {
  BuildFolder folder(entry, lock);
  build.run(folder.path(), progress);
  write_hashes(folder.path());
  std::error_code ignored;
  fs::remove(folder.path() / kFinishedFile, ignored);
  folder.publish(entry);
}

/// Opens a finished entry. Throws Error naming the remedy if it is damaged.
CachedDataset open_entry(const fs::path& entry, bool with_validation, const std::function<void()>& on_chunk) {
  CachedDataset cached;
  cached.folder = entry;
  try {
    require_hashes(entry, on_chunk);
    cached.train = open_part(entry / kTrainPart, cached.train_statistics, cached.report);
    if (with_validation)
      cached.validation = open_part(entry / kValidationPart, cached.validation_statistics, cached.report);
  } catch (const FormatError& damage) {
    throw Error(format("the cache entry {} is damaged: {}; delete the folder, and it will be rebuilt",
                       entry.string(), damage.what()));
  }
  return cached;
}

}  // namespace

CachedDataset open_cached_dataset(const TextSource& source, const RecordFormat& records,
                                  const TokenizeOptions& options, const fs::path& cache_dir,
                                  const TokenizeProgressFunction& progress) {
  std::error_code failure;
  fs::create_directories(cache_dir, failure);
  if (failure)
    throw Error(format("cannot create the data cache {}: {}", cache_dir.string(), failure.message()));
  const DatasetBuild build(source, records, options);
  const fs::path entry = cache_dir / build.fingerprint();
  if (!fs::is_directory(entry)) {
    const BuildLock lock(entry, [&] {
      if (progress) progress({.bytes_total = source.total_bytes(), .waiting = true});
    });
    if (!fs::is_directory(entry)) build_entry(build, entry, lock, progress);
  }
  CachedDataset cached = open_entry(entry, build.holds_out(), [&] {
    if (progress) progress({.bytes_total = source.total_bytes(), .verifying = true});
  });
  require_few_bad_records(cached.report, options.max_bad_records);  // another run may have allowed more
  return cached;
}

}  // namespace stepforge
