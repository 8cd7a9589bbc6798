// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/dataset_cache.h"

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <set>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/file_record.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json_reader.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

/// To be raised when the layout of an entry or the way of cutting documents changes.
constexpr int kCacheVersion = 4;
constexpr auto kLeftoverAge = std::chrono::hours(24);

/// Held while an entry is built; released by the system if the process dies.
class FileLock {
 public:
  FileLock(const fs::path& path, const std::function<void()>& on_wait) {
    descriptor_ = open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (descriptor_ < 0) throw Error(format("cannot create {}: {}", path.string(), std::strerror(errno)));
    held_ = flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
    if (held_ || errno != EWOULDBLOCK) return;
    on_wait();
    do {
      held_ = flock(descriptor_, LOCK_EX) == 0;
    } while (!held_ && errno == EINTR);
  }
  ~FileLock() { close(descriptor_); }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  /// False where files cannot be locked.
  bool held() const { return held_; }

 private:
  int descriptor_ = -1;
  bool held_ = false;
};

/// The folder in which an entry is built. Under a lock it is "<entry>.partial", which stays for the next
/// build if this one is killed or interrupted; without a lock, a new "<entry>.building-XXXXXX", which is
/// removed.
class BuildFolder {
 public:
  BuildFolder(const fs::path& entry, bool locked) : path_(entry), kept_(locked) {
    path_ += locked ? ".partial" : ".building-XXXXXX";
    std::string name = path_.string();
    std::error_code failure;
    if (locked) {
      fs::create_directory(path_, failure);
    } else if (mkdtemp(name.data()) == nullptr) {
      failure = std::error_code(errno, std::generic_category());
    }
    if (failure) throw Error(format("cannot create {}: {}", name, failure.message()));
    path_ = name;
  }
  ~BuildFolder() {
    if (!kept_) clear();
  }
  BuildFolder(const BuildFolder&) = delete;
  BuildFolder& operator=(const BuildFolder&) = delete;

  void clear() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }

  const fs::path& path() const { return path_; }

  /// Renames the folder to `entry`, unless another process did so first.
  void publish(const fs::path& entry) {
    fsync_path(path_);
    // mkdtemp creates it without permissions for others.
    fs::permissions(path_, fs::perms::owner_all | fs::perms::group_read | fs::perms::group_exec |
                               fs::perms::others_read | fs::perms::others_exec);
    std::error_code failure;
    fs::rename(path_, entry, failure);
    if (failure && !fs::is_directory(entry)) {
      throw Error(format("cannot rename {} to {}: {}", path_.string(), entry.string(), failure.message()));
    }
    kept_ = false;
    fsync_path(entry.parent_path());
  }

 private:
  fs::path path_;
  bool kept_;
};

/// Removes old folders of killed builds of this entry; recent ones may belong to a running process.
void remove_leftovers(const fs::path& entry) {
  const std::string start = entry.filename().string() + ".building-";
  const auto now = fs::file_time_type::clock::now();
  std::error_code ignored;
  for (const auto& found : fs::directory_iterator(entry.parent_path(), ignored)) {
    if (!found.path().filename().string().starts_with(start)) continue;
    const auto changed = found.last_write_time(ignored);
    if (!ignored && now - changed > kLeftoverAge) fs::remove_all(found.path(), ignored);
  }
}

constexpr std::string_view kPositionFile = "position.json";
constexpr std::string_view kHashesFile = "hashes.json";
constexpr const char* kTrainPart = "train";
constexpr const char* kValidationPart = "validation";

void write_hashes(const fs::path& folder) {
  std::vector<FileRecord> files;
  for (const fs::path& path : entries_of(folder)) files.push_back(file_record(path));
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

Json to_json(const DatasetStatistics& statistics) {
  return {{"documents", statistics.documents},
          {"tokens", statistics.tokens},
          {"text_bytes", statistics.text_bytes}};
}

DatasetStatistics statistics_from(const JsonReader& json) {
  return {json["documents"].count(), json["tokens"].count(), json["text_bytes"].count()};
}

/// Builds one entry, starting where an earlier build of it stopped.
class EntryBuild {
 public:
  EntryBuild(const TextSource& source, const RecordFormat& records, const TokenizeOptions& options,
             const fs::path& folder)
      : source_(source), records_(records), options_(options), folder_(folder) {}

  void run(const TokenizeProgressFunction& progress) {
    const TokenizePosition start = resume();
    int64_t unsaved = 0;
    TokenizePosition last = start;
    const auto reached = [&](const TokenizePosition& position) {
      unsaved += position.byte - (position.file == last.file ? last.byte : 0);
      last = position;
      if (unsaved < options_.save_bytes) return;
      save(position);
      unsaved = 0;
    };
    const TokenizeResult result =
        tokenize(source_, records_, options_, *train_, validation_.get(), progress, start, reached);
    publish(*train_, result.train);
    if (validation_) publish(*validation_, result.validation);
    std::error_code ignored;
    fs::remove(folder_ / kPositionFile, ignored);
    write_hashes(folder_);
  }

 private:
  /// Opens the writers at the position that the last build saved, or at the beginning if it is unusable.
  TokenizePosition resume() {
    try {
      const TokenizePosition position = saved_position();
      open_writers(position.done);
      return position;
    } catch (const Error&) {
      open_writers({});
      return {};
    }
  }

  void open_writers(const TokenizeResult& done) {
    const DatasetContents contents{token_type_for(records_.tokenizer().vocab_size()),
                                   records_.has_loss_mask()};
    const auto writer = [&](const char* name, const DatasetStatistics& statistics) {
      return std::make_unique<IndexedDatasetWriter>(
          folder_ / name, contents, IndexedDatasetWriter::Position{statistics.documents, statistics.tokens});
    };
    train_ = writer(kTrainPart, done.train);
    if (options_.split.fraction > 0.0) validation_ = writer(kValidationPart, done.validation);
  }

  /// Returns the beginning if nothing was saved.
  TokenizePosition saved_position() const {
    const fs::path path = folder_ / kPositionFile;
    // A limit of records is counted from the beginning.
    if (!fs::exists(path) || options_.max_records > 0) return {};
    const Json json = read_json_file(path, {.max_bytes = 4096, .max_depth = 4});
    const JsonReader reader(json, path.string());
    TokenizePosition position;
    const int64_t last_file = std::ssize(source_.files()) - 1;
    position.file = static_cast<size_t>(reader["file"].integer(0, last_file));
    position.byte = reader["byte"].count();
    position.done = {statistics_from(reader["train"]), statistics_from(reader["validation"])};
    return position;
  }

  /// Flushes the tokens before writing the position that counts them.
  void save(const TokenizePosition& position) {
    train_->save();
    if (validation_) validation_->save();
    const Json json = {{"file", position.file},
                       {"byte", position.byte},
                       {"train", to_json(position.done.train)},
                       {"validation", to_json(position.done.validation)}};
    write_file_atomic(folder_ / kPositionFile, json.dump(2) + "\n");
  }

  void publish(IndexedDatasetWriter& writer, const DatasetStatistics& statistics) {
    writer.publish();
    write_description(writer.prefix(), statistics, records_.tokenizer(), source_.description());
  }

  const TextSource& source_;
  const RecordFormat& records_;
  const TokenizeOptions& options_;
  const fs::path& folder_;
  std::unique_ptr<IndexedDatasetWriter> train_;
  std::unique_ptr<IndexedDatasetWriter> validation_;
};

void build_entry(const TextSource& source, const RecordFormat& records, const TokenizeOptions& options,
                 const fs::path& entry, bool locked, const TokenizeProgressFunction& progress) {
  BuildFolder folder(entry, locked);
  try {
    EntryBuild(source, records, options, folder.path()).run(progress);
  } catch (const FormatError&) {
    folder.clear();  // the same text will fail again
    throw;
  } catch (const UsageError&) {
    folder.clear();
    throw;
  }
  folder.publish(entry);
}

std::shared_ptr<const IndexedDataset> open_part(const fs::path& prefix, DatasetStatistics& statistics) {
  auto dataset = std::make_shared<IndexedDataset>(prefix);
  const auto description = read_description(*dataset);
  if (!description) throw FormatError(format("{} is missing", description_path(prefix).string()));
  statistics = description->statistics;
  return dataset;
}

/// Opens a finished entry. Throws Error naming the remedy if it is damaged.
CachedDataset open_entry(const fs::path& entry, bool with_validation, const std::function<void()>& on_chunk) {
  CachedDataset cached;
  cached.folder = entry;
  try {
    require_hashes(entry, on_chunk);
    cached.train = open_part(entry / kTrainPart, cached.train_statistics);
    if (with_validation) cached.validation = open_part(entry / kValidationPart, cached.validation_statistics);
  } catch (const FormatError& damage) {
    throw Error(format("the cache entry {} is damaged: {}; delete the folder, and it will be rebuilt",
                       entry.string(), damage.what()));
  }
  return cached;
}

}  // namespace

std::string cache_key(const TextSource& source, const RecordFormat& records, const TokenizeOptions& options) {
  std::string parts =
      format("version {}\n{}\n{}", kCacheVersion, source.content_key(options.workers), records.fingerprint());
  if (options.max_records > 0) parts += format("\n{} records", options.max_records);
  if (options.split.fraction > 0.0) parts += format("\n{} {}", options.split.fraction, options.split.seed);
  return content_hash(parts);
}

CachedDataset open_cached_dataset(const TextSource& source, const RecordFormat& records,
                                  const TokenizeOptions& options, const fs::path& cache_dir,
                                  const TokenizeProgressFunction& progress) {
  std::error_code failure;
  fs::create_directories(cache_dir, failure);
  if (failure)
    throw Error(format("cannot create the data cache {}: {}", cache_dir.string(), failure.message()));
  const fs::path entry = cache_dir / cache_key(source, records, options);
  if (!fs::is_directory(entry)) {
    const fs::path lock_path = with_suffix(entry, ".lock");
    const FileLock lock(lock_path, [&] {
      if (progress) progress({.bytes_total = source.total_bytes(), .waiting = true});
    });
    remove_leftovers(entry);
    if (!fs::is_directory(entry)) build_entry(source, records, options, entry, lock.held(), progress);
    fs::remove(lock_path, failure);
  }
  return open_entry(entry, options.split.fraction > 0.0, [&] {
    if (progress) progress({.bytes_total = source.total_bytes(), .verifying = true});
  });
}

}  // namespace stepforge
