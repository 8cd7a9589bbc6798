// SPDX-License-Identifier: Apache-2.0
// The micro-batches of one data rank, in order, read by the caller or prefetched by a thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <thread>

#include "stepforge/base/threads.h"
#include "stepforge/data/batch_layout.h"
#include "stepforge/data/row_stream.h"

namespace stepforge {

/// What a checkpoint keeps about the data: the same on every rank and in any layout.
struct LoaderState {
  int64_t rows_consumed = 0;  ///< global rows of the finished steps
  std::string fingerprint;    ///< of the RowStream

  friend bool operator==(const LoaderState&, const LoaderState&) = default;
};

/// The position of one rank in the stream, in micro-batches.
class BatchCursor {
 public:
  BatchCursor(const BatchLayout& layout, int64_t rows_consumed) : layout_(layout), step_row_(rows_consumed) {}
  /// First global row of the next micro-batch.
  int64_t first_row() const;
  void advance();
  /// Global rows of finished steps: an interrupted step is repeated.
  int64_t rows_consumed() const { return step_row_; }

 private:
  BatchLayout layout_;
  int64_t step_row_;
  int64_t micro_batch_ = 0;
};

/// Returns the micro-batches of one rank, reading them on the calling thread.
class Loader {
 public:
  Loader(std::shared_ptr<const RowStream> stream, const BatchLayout& layout);
  virtual ~Loader() = default;
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next micro-batch. Throws what reading the rows throws.
  virtual Batch next();
  /// A micro-batch of padding, for a rank that has to take part in a step without rows.
  Batch blank() const;
  /// Where to resume: unchanged within a step, advanced by rows_per_step with its last micro-batch.
  LoaderState state() const { return {cursor_.rows_consumed(), stream_->fingerprint()}; }
  /// Continues from `state`, at the beginning of a step. Throws UsageError if it belongs to other data,
  /// unless `allow_changed`.
  virtual void restore(const LoaderState& state, bool allow_changed);
  /// Seconds that callers have waited in next().
  double wait_seconds() const { return wait_seconds_; }

  const BatchLayout& layout() const { return layout_; }
  const RowStream& stream() const { return *stream_; }

 protected:
  Batch read(const BatchCursor& cursor) const;
  /// What this rank makes of whole rows.
  Batch prepared(Batch batch) const;

  std::shared_ptr<const RowStream> stream_;
  BatchLayout layout_;
  BatchCursor cursor_;
  double wait_seconds_ = 0.0;
};

/// A Loader whose batches are read ahead of time by its own thread. Its state does not count batches that
/// were only prefetched. An exception on the thread is thrown by next() when its batch is due, and by every
/// call after that.
class PrefetchLoader : public Loader {
 public:
  /// Keeps up to `depth` >= 1 batches ready. Throws UsageError for a smaller depth.
  PrefetchLoader(std::shared_ptr<const RowStream> stream, const BatchLayout& layout, int64_t depth);
  /// Stops the thread and drops what it has fetched.
  ~PrefetchLoader() override;

  Batch next() override;
  void restore(const LoaderState& state, bool allow_changed) override;

 private:
  struct Item {
    Batch batch;
    std::exception_ptr failure;
  };
  void start();
  void stop();
  void produce(BatchCursor cursor);

  int64_t depth_;
  std::unique_ptr<BoundedQueue<Item>> queue_;
  std::exception_ptr failure_;
  std::jthread thread_;
};

}  // namespace stepforge
