// SPDX-License-Identifier: Apache-2.0
#include "stepforge/dataset/tokenize.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/random.h"
#include "stepforge/base/threads.h"
#include "stepforge/records/content_reader.h"

namespace stepforge {

namespace {

constexpr int64_t kAllRecords = std::numeric_limits<int64_t>::max();

/// Text in progress or ready, over all threads. What it is encoded as may take 20 times as much, if documents are tiny.
constexpr int64_t kWindowBytes = int64_t{4} << 20;
constexpr int64_t kMinChunkBytes = int64_t{16} << 10;

/// Malformed records.
struct BadRecords {
  int64_t count = 0;
  std::vector<std::string> messages{};  ///< of the first few
};

/// One chunk after encoding.
struct EncodedChunk {
  EncodedDocuments documents;
  std::vector<Hash128> hashes;  ///< of the records that became the documents; empty if nobody needs them
  BadRecords bad;
  std::exception_ptr failure;
};

/// Encodes the records of one chunk.
class RecordReader {
 public:
  /// `named`: how many malformed records have been named already. `limit`: only so many records are read.
  RecordReader(RecordEncoder& encoder, bool hashes, bool skips, size_t named, int64_t limit)
      : encoder_(encoder), hashes_(hashes), skips_(skips), named_(named), limit_(limit) {}

  EncodedChunk read(const TextSource& source, const TextChunk& chunk) {
    try {
      FaultHandler on_fault;
      if (skips_ || limit_ < kAllRecords) on_fault = [this](const auto& message) { refuse(message); };
      source.read(chunk, [this](std::string_view record) { append(record); }, on_fault);
    } catch (const std::bad_alloc&) {
      encoded_ = {};
      encoded_.failure = std::make_exception_ptr(Error(
          format("{}: not enough memory for the {} of text from byte {} of its contents on; records may have "
                 "{}, and take about sixteen times as much",
                 source.files()[chunk.file].path.string(), human_bytes(chunk.end - chunk.begin), chunk.begin,
                 human_bytes(kMaxRecordBytes))));
    } catch (...) {
      encoded_.failure = std::current_exception();
    }
    return std::move(encoded_);
  }

 private:
  void append(std::string_view record) {
    if (seen_++ >= limit_) return;
    EncodedDocuments& documents = encoded_.documents;
    const size_t before = documents.ends.size();
    try {
      encoder_.append(record, documents);
    } catch (const FormatError&) {
      documents.resize(before);
      is_counted_ = true;
      throw;
    }
    if (!hashes_) return;
    for (size_t i = before; i < documents.ends.size(); ++i) {
      Hash128 hash = hash128(record);
      hash.high ^= mix_bits(i - before) ^ mix_bits(0);  // the documents of one record differ
      encoded_.hashes.push_back(hash);
    }
  }

  /// append() has counted the record, unless it could not even be read.
  void refuse(const std::function<std::string()>& message) {
    if (!std::exchange(is_counted_, false) && seen_++ >= limit_) return;
    if (!skips_) throw FormatError(message());
    BadRecords& bad = encoded_.bad;
    ++bad.count;
    if (named_ + bad.messages.size() < kNamedRecords) bad.messages.push_back(message());
  }

  RecordEncoder& encoder_;
  bool hashes_;
  bool skips_;
  size_t named_;
  int64_t limit_;
  int64_t seen_ = 0;         ///< records
  bool is_counted_ = false;  ///< the record that is refused next is among them
  EncodedChunk encoded_;
};

/// Encodes chunks on several threads and returns them in order. At most `window_` chunks, and kWindowBytes of text or one
/// chunk, are in progress or ready.
class ChunkEncoder {
 public:
  ChunkEncoder(const TextSource& source, const RecordFormat& records, const TokenizeOptions& options,
               bool hashes, const TokenizePosition& start)
      : source_(source),
        records_(records),
        hashes_(hashes),
        skips_(options.max_bad_records > 0),
        named_(start.done.bad_records.size()),
        next_file_(start.file),
        next_byte_(start.byte),
        records_left_(options.max_records > 0 ? options.max_records : kAllRecords) {
    const int workers = options.workers > 0 ? options.workers : hardware_threads();
    window_ = static_cast<size_t>(workers) * 2;
    slots_.resize(window_);
    chunk_bytes_ =
        std::min(options.chunk_bytes, std::max(kMinChunkBytes, kWindowBytes / static_cast<int64_t>(window_)));
    try {
      for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { work(); });
    } catch (...) {
      stop();
      throw;
    }
  }

  ~ChunkEncoder() { stop(); }
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
    std::pair<TextChunk, EncodedChunk> result(std::move(slot.chunk), std::move(slot.encoded));
    slot = Slot{};
    ++taken_;
    window_bytes_ -= result.first.end - result.first.begin;
    lock.unlock();
    changed_.notify_all();
    if (result.second.failure) std::rethrow_exception(result.second.failure);
    return result;
  }

  /// So many malformed records have been named: no more messages are needed if these are enough.
  void set_named(size_t count) { named_ = count; }

 private:
  struct Slot {
    bool ready = false;
    TextChunk chunk;
    int64_t records = kAllRecords;  ///< of the chunk that are used
    EncodedChunk encoded;
  };

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
  }

  void work() {
    try {
      const auto encoder = records_.encoder();
      while (Slot* const slot = claim()) {
        EncodedChunk encoded =
            RecordReader(*encoder, hashes_, skips_, named_, slot->records).read(source_, slot->chunk);
        const std::lock_guard lock(mutex_);
        slot->encoded = std::move(encoded);
        slot->ready = true;
        changed_.notify_all();
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      fail();
    }
  }

  /// The slot for the next chunk, once the window has room; null after the last chunk.
  Slot* claim() {
    std::unique_lock lock(mutex_);
    while (!stopped_ && !exhausted_) {
      if (!pending_) read_ahead_or_fail();
      if (pending_ && has_room()) {
        Slot& slot = slots_[claimed_++ % window_];
        slot.chunk = std::move(*pending_);
        slot.records = take_records(slot.chunk);
        pending_.reset();
        window_bytes_ += slot.chunk.end - slot.chunk.begin;
        return &slot;
      }
      if (pending_) changed_.wait(lock);
    }
    return nullptr;
  }

  bool has_room() const {
    if (claimed_ == taken_) return true;
    return claimed_ < taken_ + window_ && window_bytes_ + pending_->end - pending_->begin <= kWindowBytes;
  }

  void read_ahead_or_fail() {
    try {
      read_ahead();
    } catch (const std::bad_alloc&) {
      failure_ = std::make_exception_ptr(Error(format("{}: not enough memory to read its documents",
                                                      source_.files()[next_file_ - 1].path.string())));
      end();
    } catch (...) {
      // Before the lock is released: another worker would go on after the fault.
      fail();
    }
  }

  /// The lock is held. Nothing more is begun; next() throws what is being thrown now.
  void fail() {
    failure_ = std::current_exception();
    end();
  }
  void end() {
    exhausted_ = true;
    changed_.notify_all();
  }

  /// Sets the pending chunk, or that there is none left.
  void read_ahead() {
    while (!pending_ && !exhausted_) {
      if (chunks_ && records_left_ > 0) pending_ = chunks_->next();
      if (pending_) return;
      if (next_file_ == source_.files().size() || records_left_ == 0) {
        exhausted_ = true;
        changed_.notify_all();
      } else {
        chunks_ = source_.chunks(next_file_++, chunk_bytes_, std::exchange(next_byte_, 0));
      }
    }
  }

  /// How many records of the next chunk are used. Only a limit of records needs to count them.
  int64_t take_records(const TextChunk& chunk) {
    if (records_left_ == kAllRecords) return kAllRecords;
    int64_t records = 0;
    try {
      source_.read(chunk, [&](std::string_view) { ++records; }, [&](const auto&) { ++records; });
    } catch (const FormatError&) {  // who encodes the chunk reports it
      records = records_left_;
    }
    records = std::min(records, records_left_);
    records_left_ -= records;
    return records;
  }

  const TextSource& source_;
  const RecordFormat& records_;
  bool hashes_;
  bool skips_;
  std::atomic<size_t> named_;
  int64_t chunk_bytes_ = 0;
  size_t window_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  std::unique_ptr<TextChunks> chunks_;  ///< of the current file
  std::optional<TextChunk> pending_;    ///< the next one, which waits for room
  size_t next_file_;
  int64_t next_byte_;         ///< of that file
  int64_t records_left_;      ///< that may still be used
  size_t claimed_ = 0;        ///< chunks begun
  size_t taken_ = 0;          ///< chunks handed out
  int64_t window_bytes_ = 0;  ///< of the chunks begun and not handed out
  bool exhausted_ = false;
  bool stopped_ = false;
  std::exception_ptr failure_;
  std::vector<std::jthread> threads_;  ///< last member: joined before the others are destroyed
};

/// Writes encoded chunks and counts what it writes.
class ChunkWriter {
 public:
  ChunkWriter(const TokenizeOptions& options, const TokenizeOutput& output, TokenizeResult done)
      : options_(options), output_(output), result_(std::move(done)) {}

  const TokenizeResult& result() const { return result_; }

  void write(const EncodedChunk& chunk) {
    const EncodedDocuments& encoded = chunk.documents;
    int64_t begin = 0;
    for (size_t i = 0; i < encoded.ends.size(); begin = encoded.ends[i++])
      write_document(encoded, i, begin, chunk.hashes.empty() ? Hash128{} : chunk.hashes[i]);
    add_losses(result_.dropped, encoded.dropped);
    add_losses(result_.cut, encoded.cut);
    if (chunk.bad.count > 0) add(chunk.bad);
  }

 private:
  void write_document(const EncodedDocuments& encoded, size_t index, int64_t begin, const Hash128& hash) {
    const int64_t count = encoded.ends[index] - begin;
    const int64_t text_bytes = encoded.text_bytes[index];
    if (output_.is_new && !output_.is_new(hash)) {
      result_.dropped[kDuplicate] += {.documents = 1, .tokens = count, .text_bytes = text_bytes};
      return;
    }
    const std::span<const int32_t> tokens(encoded.tokens.data() + begin, static_cast<size_t>(count));
    std::span<const uint8_t> counted = encoded.counted;
    if (!counted.empty()) counted = counted.subspan(static_cast<size_t>(begin), tokens.size());
    const bool held_out = output_.validation != nullptr && options_.split.holds_out(hash);
    (held_out ? *output_.validation : output_.train).add_document(tokens, counted);
    DatasetStatistics& statistics = held_out ? result_.validation : result_.train;
    ++statistics.documents;
    statistics.tokens += count;
    statistics.text_bytes += text_bytes;
    ++result_.lengths[static_cast<size_t>(std::bit_width(static_cast<uint64_t>(count)))];
  }

  void add(const BadRecords& bad) {
    for (const std::string& message : bad.messages) {
      if (result_.bad_records.size() < kNamedRecords) result_.bad_records.push_back(message);
    }
    result_.dropped[kMalformed].documents += bad.count;
    require_few_bad_records(result_, options_.max_bad_records);
  }

  const TokenizeOptions& options_;
  const TokenizeOutput& output_;
  TokenizeResult result_;
};

}  // namespace

bool ValidationSplit::holds_out(const Hash128& text) const {
  if (fraction <= 0.0) return false;
  const auto words = philox(stream_key(seed, "held-out documents"), text.low, text.high);
  return uniform_double(words[0], words[1]) < fraction;
}

TokenizeResult tokenize(const TextSource& source, const RecordFormat& records, const TokenizeOptions& options,
                        const TokenizeOutput& output, const TokenizeProgressFunction& progress,
                        const TokenizePosition& start,
                        const std::function<void(const TokenizePosition&)>& reached) {
  const bool hashes = output.validation != nullptr || output.is_new;
  ChunkEncoder encoder(source, records, options, hashes, start);
  ChunkWriter writer(options, output, start.done);
  const TokenizeResult& result = writer.result();
  TokenizeProgress state;
  state.bytes_total = source.total_bytes();
  std::vector<int64_t> before = {0};  // of each file, bytes of the files before it
  for (const TextFile& file : source.files()) before.push_back(before.back() + file.bytes);
  state.bytes_done = before[start.file];
  const TextFile& first = source.files()[start.file];
  if (!first.is_sequential()) state.bytes_done += start.byte;
  const auto report = [&] {
    state.tokens = result.train.tokens + result.validation.tokens;
    if (progress) progress(state);
  };
  report();
  while (const auto next = encoder.next(report)) {
    const TextChunk& chunk = next->first;
    writer.write(next->second);
    encoder.set_named(result.bad_records.size());
    state.bytes_done = before[chunk.file] + chunk.file_bytes;
    report();
    if (reached) reached({chunk.file, chunk.end, result});
  }
  if (result.train.documents + result.validation.documents == 0) {
    const std::vector<std::string> notes = loss_notes(result);
    throw UsageError(
        format("{} contains no document{}", source.description(),
               notes.empty() ? ": only whitespace or empty fields" : " that is kept; " + join(notes, "; ")));
  }
  return result;
}

}  // namespace stepforge
