// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/tokenize.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/base/random.h"
#include "stepforge/base/threads.h"
#include "stepforge/data/content_reader.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

/// One chunk after encoding.
struct EncodedChunk {
  EncodedDocuments documents;
  std::exception_ptr failure;
};

/// Encodes chunks on several threads and returns them in order. At most `window_` chunks are in progress or
/// ready.
class ChunkEncoder {
 public:
  ChunkEncoder(const TextSource& source, const RecordFormat& records, const TokenizeOptions& options,
               const TokenizePosition& start, int workers)
      : source_(source),
        records_(records),
        window_(static_cast<size_t>(workers) * 2),
        slots_(window_),
        next_file_(start.file),
        next_byte_(start.byte) {
    chunk_bytes_ = options.chunk_bytes;
    for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { work(); });
  }

  ~ChunkEncoder() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
  }
  ChunkEncoder(const ChunkEncoder&) = delete;
  ChunkEncoder& operator=(const ChunkEncoder&) = delete;

  /// The next chunk and its range; nullopt after the last. Calls `waiting` once a second while it waits.
  /// Rethrows the exception of the chunk's thread.
  std::optional<std::pair<TextChunk, EncodedChunk>> next(const std::function<void()>& waiting) {
    std::unique_lock lock(mutex_);
    Slot& slot = slots_[taken_ % window_];
    const auto is_due = [&] { return slot.ready || (exhausted_ && taken_ == claimed_); };
    while (!changed_.wait_for(lock, std::chrono::seconds(1), is_due)) {
      lock.unlock();
      waiting();
      lock.lock();
    }
    if (!slot.ready) {
      if (failure_) std::rethrow_exception(failure_);
      return std::nullopt;
    }
    std::pair<TextChunk, EncodedChunk> result(slot.chunk, std::move(slot.encoded));
    slot = Slot{};
    ++taken_;
    lock.unlock();
    changed_.notify_all();
    if (result.second.failure) std::rethrow_exception(result.second.failure);
    return result;
  }

 private:
  struct Slot {
    bool ready = false;
    TextChunk chunk;
    EncodedChunk encoded;
  };

  void work() {
    try {
      const auto encoder = records_.encoder();
      while (Slot* const slot = claim()) {
        EncodedChunk encoded = encode(slot->chunk, *encoder);
        const std::lock_guard lock(mutex_);
        slot->encoded = std::move(encoded);
        slot->ready = true;
        changed_.notify_all();
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
      exhausted_ = true;
      changed_.notify_all();
    }
  }

  /// The slot for the next chunk, once the window has room; null after the last chunk.
  Slot* claim() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || exhausted_ || claimed_ < taken_ + window_; });
    std::optional<TextChunk> chunk;
    try {
      if (!stopped_ && !exhausted_) chunk = next_chunk();
    } catch (...) {
      // Before the lock is released: another worker would go on after the fault.
      failure_ = std::current_exception();
    }
    if (!chunk) {
      exhausted_ = true;
      changed_.notify_all();
      return nullptr;
    }
    Slot& slot = slots_[claimed_++ % window_];
    slot.chunk = std::move(*chunk);
    return &slot;
  }

  /// The next chunk of all files; nullopt after the last.
  std::optional<TextChunk> next_chunk() {
    while (true) {
      if (chunks_) {
        if (auto chunk = chunks_->next()) return chunk;
      }
      if (next_file_ == source_.files().size()) return std::nullopt;
      chunks_ = source_.chunks(next_file_++, chunk_bytes_, std::exchange(next_byte_, 0));
    }
  }

  EncodedChunk encode(const TextChunk& chunk, RecordEncoder& encoder) const {
    EncodedChunk encoded;
    try {
      source_.read(chunk, [&](std::string_view record) { encoder.append(record, encoded.documents); });
    } catch (...) {
      encoded.failure = std::current_exception();
    }
    return encoded;
  }

  const TextSource& source_;
  const RecordFormat& records_;
  int64_t chunk_bytes_ = 0;
  size_t window_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  std::unique_ptr<TextChunks> chunks_;  ///< of the current file
  size_t next_file_;
  int64_t next_byte_;   ///< of that file
  size_t claimed_ = 0;  ///< chunks begun
  size_t taken_ = 0;    ///< chunks handed out
  bool exhausted_ = false;
  bool stopped_ = false;
  std::exception_ptr failure_;
  std::vector<std::jthread> threads_;  ///< last member: joined before the others are destroyed
};

}  // namespace

bool ValidationSplit::holds_out(int64_t document) const {
  if (fraction <= 0.0) return false;
  const auto words = philox(stream_key(seed, "held-out documents"), static_cast<uint64_t>(document));
  return uniform_double(words[0], words[1]) < fraction;
}

TokenizeResult tokenize(const TextSource& source, const RecordFormat& records, const TokenizeOptions& options,
                        IndexedDatasetWriter& train, IndexedDatasetWriter* validation,
                        const TokenizeProgressFunction& progress, const TokenizePosition& start,
                        const std::function<void(const TokenizePosition&)>& reached) {
  const int workers = options.workers > 0 ? options.workers : hardware_threads();
  ChunkEncoder encoder(source, records, options, start, workers);
  TokenizeResult result = start.done;
  TokenizeProgress state;
  state.bytes_total = source.total_bytes();
  std::vector<int64_t> before = {0};  // of each file, bytes of the files before it
  for (const TextFile& file : source.files()) before.push_back(before.back() + file.bytes);
  state.bytes_done = before[start.file];
  if (!is_sequential_name(source.files()[start.file].path)) state.bytes_done += start.byte;
  state.tokens = result.train.tokens + result.validation.tokens;
  const auto report = [&] {
    if (progress) progress(state);
  };
  report();
  int64_t document = result.train.documents + result.validation.documents;
  while (const auto next = encoder.next(report)) {
    const TextChunk& chunk = next->first;
    const EncodedDocuments& encoded = next->second.documents;
    int64_t begin = 0;
    for (size_t i = 0; i < encoded.ends.size(); ++i, ++document) {
      const bool held_out = validation != nullptr && options.split.holds_out(document);
      const int64_t count = encoded.ends[i] - begin;
      const std::span<const int32_t> tokens(encoded.tokens.data() + begin, static_cast<size_t>(count));
      std::span<const uint8_t> counted = encoded.counted;
      if (!counted.empty()) counted = counted.subspan(static_cast<size_t>(begin), tokens.size());
      (held_out ? *validation : train).add_document(tokens, counted);
      DatasetStatistics& statistics = held_out ? result.validation : result.train;
      ++statistics.documents;
      statistics.tokens += count;
      statistics.text_bytes += encoded.text_bytes[i];
      begin = encoded.ends[i];
    }
    state.bytes_done = before[chunk.file] + chunk.file_bytes;
    state.tokens += begin;
    report();
    if (reached) reached({chunk.file, chunk.end, result});
  }
  if (document == 0) {
    throw UsageError(
        format("{} contains no document: only whitespace or empty fields", source.description()));
  }
  return result;
}

fs::path description_path(const fs::path& prefix) {
  return with_suffix(prefix, ".json");
}

void write_description(const fs::path& prefix, const DatasetStatistics& statistics,
                       const Tokenizer& tokenizer, const std::string& source) {
  const Json json = {
      {"documents", statistics.documents},    {"tokens", statistics.tokens},
      {"text_bytes", statistics.text_bytes},  {"tokenizer_fingerprint", tokenizer.fingerprint()},
      {"vocab_size", tokenizer.vocab_size()}, {"source", source}};
  // Paths need not be UTF-8.
  write_file_atomic(description_path(prefix),
                    json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::optional<DatasetDescription> read_description(const IndexedDataset& dataset) {
  const fs::path path = description_path(dataset.prefix());
  if (!fs::exists(path)) return std::nullopt;
  const Json json = read_json_file(path, {.max_bytes = int64_t{1} << 20, .max_depth = 8});
  const JsonReader reader(json, path.string());
  DatasetDescription description;
  description.statistics = {reader["documents"].count(), reader["tokens"].count(),
                            reader["text_bytes"].count()};
  description.tokenizer_fingerprint = reader["tokenizer_fingerprint"].text();
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

}  // namespace stepforge
