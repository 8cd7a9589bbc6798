#include "stepforge/data/dataset_cache.h"

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

/// Raised when the layout of an entry or the way of cutting documents changes.
constexpr int kCacheVersion = 1;
constexpr auto kLeftoverAge = std::chrono::hours(24);

/// Held while an entry is built; released by the system if the process dies.
class FileLock {
 public:
  FileLock(const fs::path& path, const std::function<void()>& on_wait) {
    descriptor_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor_ < 0) throw Error(format("cannot create {}: {}", path.string(), std::strerror(errno)));
    if (flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
      return;  // or no locks here: go without
    on_wait();
    while (flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~FileLock() { close(descriptor_); }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_ = -1;
};

/// A new folder "<entry>.building-XXXXXX"; removed if not renamed away.
class BuildFolder {
 public:
  explicit BuildFolder(const fs::path& entry) {
    std::string name = entry.string() + ".building-XXXXXX";
    if (mkdtemp(name.data()) == nullptr)
      throw Error(format("cannot create {}: {}", name, std::strerror(errno)));
    path_ = name;
  }
  ~BuildFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  BuildFolder(const BuildFolder&) = delete;
  BuildFolder& operator=(const BuildFolder&) = delete;

  const fs::path& path() const { return path_; }

  /// Renames to `entry`, unless another process was quicker.
  void publish(const fs::path& entry) {
    fsync_path(path_);
    // mkdtemp makes it private.
    fs::permissions(path_, fs::perms::owner_all | fs::perms::group_read | fs::perms::group_exec |
                               fs::perms::others_read | fs::perms::others_exec);
    std::error_code failure;
    fs::rename(path_, entry, failure);
    if (failure && !fs::is_directory(entry)) {
      throw Error(format("cannot rename {} to {}: {}", path_.string(), entry.string(), failure.message()));
    }
    fsync_path(entry.parent_path());
  }

 private:
  fs::path path_;
};

/// Removes what killed builds of this entry left behind; younger folders may belong to a living process.
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

void build_entry(const TextSource& source, const Tokenizer& tokenizer, const TokenizeOptions& options,
                 const fs::path& entry, const TokenizeProgressFunction& progress) {
  BuildFolder folder(entry);
  const TokenType type = token_type_for(tokenizer.vocab_size());
  IndexedDatasetWriter train(folder.path() / "train", type);
  std::unique_ptr<IndexedDatasetWriter> validation;
  if (options.split.fraction > 0.0) {
    validation = std::make_unique<IndexedDatasetWriter>(folder.path() / "validation", type);
  }
  const TokenizeResult result = tokenize(source, tokenizer, options, train, validation.get(), progress);
  const auto finish = [&](IndexedDatasetWriter& writer, const DatasetStatistics& statistics) {
    writer.publish();
    write_description(writer.prefix(), statistics, tokenizer, source.description());
  };
  finish(train, result.train);
  if (validation) finish(*validation, result.validation);
  folder.publish(entry);
}

std::shared_ptr<const IndexedDataset> open_part(const fs::path& prefix, DatasetStatistics& statistics) {
  try {
    auto dataset = std::make_shared<IndexedDataset>(prefix);
    const auto description = read_description(*dataset);
    if (!description) throw FormatError(format("{} is missing", description_path(prefix).string()));
    statistics = description->statistics;
    return dataset;
  } catch (const Error& failure) {
    throw Error(format("the cache entry {} is damaged: {}; delete the folder, and it is built again",
                       prefix.parent_path().string(), failure.what()));
  }
}

}  // namespace

std::string cache_key(const TextSource& source, const Tokenizer& tokenizer, const TokenizeOptions& options) {
  const auto eos = options.append_eos ? tokenizer.eos_id() : std::nullopt;
  std::string parts = format("version {}\n{}\n{}\n{}", kCacheVersion, source.content_key(options.workers),
                             tokenizer.fingerprint(), eos ? *eos : -1);
  if (options.split.fraction > 0.0) parts += format("\n{} {}", options.split.fraction, options.split.seed);
  return content_hash(parts);
}

CachedDataset open_cached_dataset(const TextSource& source, const Tokenizer& tokenizer,
                                  const TokenizeOptions& options, const fs::path& cache_dir,
                                  const TokenizeProgressFunction& progress) {
  std::error_code failure;
  fs::create_directories(cache_dir, failure);
  if (failure)
    throw Error(format("cannot create the data cache {}: {}", cache_dir.string(), failure.message()));
  const fs::path entry = cache_dir / cache_key(source, tokenizer, options);
  if (!fs::is_directory(entry)) {
    fs::path lock_path = entry;
    lock_path += ".lock";
    const FileLock lock(lock_path, [&] {
      if (progress) progress({.bytes_total = source.total_bytes(), .waiting = true});
    });
    remove_leftovers(entry);
    if (!fs::is_directory(entry)) build_entry(source, tokenizer, options, entry, progress);
    fs::remove(lock_path, failure);
  }
  CachedDataset cached;
  cached.folder = entry;
  cached.train = open_part(entry / "train", cached.train_statistics);
  if (options.split.fraction > 0.0)
    cached.validation = open_part(entry / "validation", cached.validation_statistics);
  return cached;
}

}  // namespace stepforge
