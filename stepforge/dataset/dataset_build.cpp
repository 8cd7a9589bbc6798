// SPDX-License-Identifier: Apache-2.0
#include "stepforge/dataset/dataset_build.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <system_error>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/file_writer.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/base/staged.h"
#include "stepforge/dataset/build_folder.h"
#include "stepforge/dataset/seen_texts.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPositionFile = "position.json";
constexpr std::string_view kSeenFile = "texts.part";

/// Messages in it need not be UTF-8.
std::string text_of(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string hash_of(const Json& json) {
  return content_hash(text_of(json));
}

/// The hashes of the documents so far, in memory and in a file for the next build.
class StoredTexts {
 public:
  /// Continues after `count` hashes of the file. Throws Error if it does not hold them, as `check` says.
  StoredTexts(const fs::path& path, int64_t count, const std::string& check) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(Hash128));
    file_ = std::make_unique<FileWriter>(path, bytes);
    const FileReader reader(path);
    std::vector<Hash128> block;
    for (int64_t begin = 0; begin < bytes; begin += kBlockBytes) {
      block.resize(static_cast<size_t>(std::min(bytes - begin, kBlockBytes)) / sizeof(Hash128));
      reader.read(begin, std::as_writable_bytes(std::span(block)));
      for (const Hash128& hash : block) add(hash);
    }
    if (seen_.size() != count || this->check() != check) throw Error(format("{} is damaged", path.string()));
  }

  bool insert(const Hash128& hash) {
    if (!add(hash)) return false;
    std::array<char, sizeof(Hash128)> bytes{};
    std::memcpy(bytes.data(), &hash, sizeof hash);
    buffer_.append(bytes.data(), bytes.size());
    if (std::ssize(buffer_) >= kBlockBytes) write();
    return true;
  }

  void save() {
    write();
    file_->flush();
  }

  /// Changes with any of the hashes.
  std::string check() const { return format("{:016x}{:016x}", sum_.high, sum_.low); }

 private:
  static constexpr int64_t kBlockBytes = int64_t{1} << 20;

  bool add(const Hash128& hash) {
    if (!seen_.insert(hash)) return false;
    sum_ = {sum_.high + hash.high, sum_.low + hash.low};
    return true;
  }

  void write() {
    file_->write(buffer_);
    buffer_.clear();
  }

  SeenTexts seen_;
  Hash128 sum_;
  std::unique_ptr<FileWriter> file_;
  std::string buffer_;
};

/// One run of a build, starting where an earlier one stopped.
class BuildRun {
 public:
  BuildRun(const TextSource& source, const RecordFormat& records, const TokenizeOptions& options,
           const std::string& fingerprint, const fs::path& folder)
      : source_(source), records_(records), options_(options), fingerprint_(fingerprint), folder_(folder) {}

  TokenizeResult run(const TokenizeProgressFunction& progress) {
    const TokenizePosition start = resume();
    require_few_bad_records(start.done, options_.max_bad_records);
    int64_t unsaved = 0;
    TokenizePosition last = start;
    const auto reached = [&](const TokenizePosition& position) {
      unsaved += position.byte - (position.file == last.file ? last.byte : 0);
      last.file = position.file;
      last.byte = position.byte;
      // A limit of records is counted from the beginning, so such a build cannot be continued.
      if (unsaved < options_.save_bytes || options_.max_records > 0) return;
      save(position);
      unsaved = 0;
    };
    TokenizeOutput output{*train_, validation_.get()};
    if (seen_) output.is_new = [this](const Hash128& hash) { return seen_->insert(hash); };
    TokenizeResult result = tokenize(source_, records_, options_, output, progress, start, reached);
    train_->publish();
    if (validation_) validation_->publish();
    return result;
  }

 private:
  /// Opens the writers at the position that the last build saved, or at the beginning if it is unusable.
  TokenizePosition resume() {
    try {
      return open_saved();
    } catch (const Error&) {
      open_writers({}, "");
      return {};
    }
  }

  TokenizePosition open_saved() {
    const fs::path path = folder_ / kPositionFile;
    if (!fs::exists(path)) throw Error("nothing was saved");
    const Json json = read_json_file(path, {.max_bytes = 1 << 20, .max_depth = 8});
    const JsonReader reader(json, path.string());
    const JsonReader state = reader["state"];
    if (reader["hash"].text() != hash_of(state.json())) throw Error("it is damaged");
    if (state["build"].text() != fingerprint_) throw Error("it belongs to another build");
    TokenizePosition position;
    position.file = static_cast<size_t>(state["file"].integer(0, std::ssize(source_.files()) - 1));
    position.byte = state["byte"].count();
    position.done = tokenize_result_from(state["done"]);
    open_writers(position.done, state["seen"].text());
    return position;
  }

  void open_writers(const TokenizeResult& done, const std::string& seen) {
    const DatasetContents contents{token_type_for(records_.tokenizer().vocab_size()),
                                   records_.has_loss_mask()};
    const auto writer = [&](const char* name, const DatasetStatistics& statistics) {
      return std::make_unique<IndexedDatasetWriter>(
          folder_ / name, contents, IndexedDatasetWriter::Position{statistics.documents, statistics.tokens});
    };
    train_ = writer(kTrainPart, done.train);
    if (options_.split.fraction > 0.0) validation_ = writer(kValidationPart, done.validation);
    const int64_t documents = done.train.documents + done.validation.documents;
    if (options_.deduplicate) {
      seen_ = std::make_unique<StoredTexts>(folder_ / kSeenFile, documents,
                                            documents == 0 ? std::string(32, '0') : seen);
    }
  }

  /// Flushes the data before writing the position that counts them.
  void save(const TokenizePosition& position) {
    train_->save();
    if (validation_) validation_->save();
    if (seen_) seen_->save();
    const Json state = {{"build", fingerprint_},
                        {"file", position.file},
                        {"byte", position.byte},
                        {"seen", seen_ ? seen_->check() : ""},
                        {"done", to_json(position.done)}};
    write_file_atomic(folder_ / kPositionFile, text_of({{"state", state}, {"hash", hash_of(state)}}) + "\n");
  }

  const TextSource& source_;
  const RecordFormat& records_;
  const TokenizeOptions& options_;
  const std::string& fingerprint_;
  const fs::path& folder_;
  std::unique_ptr<IndexedDatasetWriter> train_;
  std::unique_ptr<IndexedDatasetWriter> validation_;
  std::unique_ptr<StoredTexts> seen_;
};

void delete_folder(const fs::path& folder) {
  std::error_code ignored;
  fs::remove_all(folder, ignored);
}

/// An interrupted call may have moved it.
void move_file(const fs::path& from, const fs::path& to) {
  if (fs::exists(from)) rename_file(from, to);
}

/// Gives a finished pair its final name. After an interruption it may be called again.
void move_pair(const fs::path& from, const fs::path& to, bool has_mask) {
  if (!fs::exists(idx_path(from))) return;
  std::error_code missing;
  fs::remove(idx_path(to), missing);  // a reader finds matching files or none
  if (!has_mask) fs::remove(mask_path(to), missing);
  move_file(mask_path(from), mask_path(to));
  move_file(bin_path(from), bin_path(to));
  move_file(description_path(from), description_path(to));
  move_file(idx_path(from), idx_path(to));
  fsync_path(to.has_parent_path() ? to.parent_path() : fs::path("."));
}

/// Whether a pair with the description of this build is there.
bool is_built(const fs::path& prefix, const std::string& fingerprint, bool has_loss_mask) {
  if (has_loss_mask && !fs::exists(mask_path(prefix))) return false;
  if (!fs::exists(idx_path(prefix)) || !fs::exists(bin_path(prefix)) || !fs::exists(description_path(prefix)))
    return false;
  try {
    const DatasetDescription found = read_description_file(description_path(prefix));
    const int64_t bytes = found.statistics.tokens * token_bytes(token_type_for(found.vocab_size));
    return found.build == fingerprint && file_bytes(bin_path(prefix)) == bytes;
  } catch (const Error&) {
    return false;  // a description of something else
  }
}

}  // namespace

DatasetBuild::DatasetBuild(const TextSource& source, const RecordFormat& records,
                           const TokenizeOptions& options)
    : source_(source),
      records_(records),
      options_(options),
      description_(describe_build(source, source.file_hashes(options.workers), records, options)) {}

void DatasetBuild::run(const fs::path& folder, const TokenizeProgressFunction& progress) const {
  if (is_finished(folder)) return;
  DatasetDescription description = description_;
  try {
    description.report = BuildRun(source_, records_, options_, fingerprint(), folder).run(progress);
  } catch (const FormatError&) {
    delete_folder(folder);
    throw;
  } catch (const UsageError&) {
    delete_folder(folder);
    throw;
  }
  std::error_code ignored;
  fs::remove(folder / kPositionFile, ignored);
  fs::remove(folder / kSeenFile, ignored);
  description.statistics = description.report.train;
  write_description(folder / kTrainPart, description);
  description.statistics = description.report.validation;
  if (holds_out()) write_description(folder / kValidationPart, description);
  write_file_atomic(folder / kFinishedFile, Json{{"build", fingerprint()}}.dump() + "\n");
}

void DatasetBuild::require_few_bad_records(const fs::path& prefix) const {
  const TokenizeResult report = read_description_file(description_path(prefix)).report;
  stepforge::require_few_bad_records(report, options_.max_bad_records);
}

bool DatasetBuild::is_finished(const fs::path& folder) const {
  const fs::path path = folder / kFinishedFile;
  if (!fs::exists(path)) return false;
  try {
    const Json json = read_json_file(path, {.max_bytes = 4096, .max_depth = 4});
    return JsonReader(json, path.string())["build"].text() == fingerprint();
  } catch (const Error&) {
    return false;
  }
}

bool build_dataset(const DatasetBuild& build, const DatasetOutput& output, bool overwrite,
                   const TokenizeProgressFunction& progress) {
  const BuildLock lock(output.train, [&] {
    if (progress) progress({.bytes_total = build.source().total_bytes(), .waiting = true});
  });
  std::vector<fs::path> outputs = {output.train};
  if (build.holds_out()) outputs.push_back(output.validation);
  const auto built = [&](const fs::path& prefix) {
    return is_built(prefix, build.fingerprint(), build.has_loss_mask());
  };
  const bool is_there = std::all_of(outputs.begin(), outputs.end(), built);
  if (is_there && !overwrite) {
    build.require_few_bad_records(output.train);
    return false;
  }
  const bool is_finished = build.is_finished(BuildFolder::kept_path(output.train));
  for (const fs::path& prefix : outputs) {
    for (const fs::path& path :
         {idx_path(prefix), bin_path(prefix), mask_path(prefix), description_path(prefix)}) {
      if (overwrite || is_finished || !fs::exists(fs::symlink_status(path))) continue;
      throw UsageError(
          format("{} exists and is not of this build: it has other text or other options, or is something "
                 "else; choose another prefix, or replace it with --overwrite",
                 path.string()));
    }
  }
  const BuildFolder folder(output.train, lock);
  build.run(folder.path(), progress);
  if (build.holds_out()) move_pair(folder.path() / kValidationPart, output.validation, build.has_loss_mask());
  move_pair(folder.path() / kTrainPart, output.train, build.has_loss_mask());
  folder.remove();
  build.require_few_bad_records(output.train);
  return true;
}

}  // namespace stepforge
