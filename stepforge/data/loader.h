// SPDX-License-Identifier: Apache-2.0
// The micro-batches of one data rank, in order; and the same, fetched ahead on a thread of its own.
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

/// Everything a checkpoint keeps of the data: the same on every rank and in any layout.
struct LoaderState {
  int64_t rows_consumed = 0;  ///< global rows of the finished steps
  std::string fingerprint;    ///< of the RowStream

  friend bool operator==(const LoaderState&, const LoaderState&) = default;
};

/// Counts the micro-batches of one rank.
class BatchCursor {
 public:
  BatchCursor(const BatchLayout& layout, int64_t rows_consumed) : layout_(layout), step_row_(rows_consumed) {}
  /// First global row of the micro-batch to come.
  int64_t first_row() const;
  void advance();
  /// Global rows of finished steps: a step that is interrupted is repeated.
  int64_t rows_consumed() const { return step_row_; }

 private:
  BatchLayout layout_;
  int64_t step_row_;
  int64_t micro_batch_ = 0;
};

/// Serves the micro-batches of one rank on the calling thread.
class Loader {
 public:
  Loader(std::shared_ptr<const RowStream> stream, const BatchLayout& layout);
  virtual ~Loader() = default;
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next micro-batch. Throws what reading the rows throws.
  virtual Batch next();
  /// Where the stream goes on: unchanged within a step, moved on by rows_per_step with its last
  /// micro-batch.
  LoaderState state() const { return {cursor_.rows_consumed(), stream_->fingerprint()}; }
  /// Goes on from `state`, at the beginning of a step. Throws UsageError if it is of other data, unless
  /// allowed.
  virtual void restore(const LoaderState& state, bool allow_changed);
  /// Seconds that next() has kept its callers waiting.
  double wait_seconds() const { return wait_seconds_; }

  const BatchLayout& layout() const { return layout_; }
  const RowStream& stream() const { return *stream_; }

 protected:
  Batch read(const BatchCursor& cursor) const {
    return stream_->rows(cursor.first_row(), layout_.rows_per_micro_batch);
  }

  std::shared_ptr<const RowStream> stream_;
  BatchLayout layout_;
  BatchCursor cursor_;
  double wait_seconds_ = 0.0;
};

/// A Loader whose batches are made ahead of time on its own thread. Its state does not count batches that were
/// only fetched ahead. An exception of the thread is thrown by next() when the batch it belongs to is due, and by
/// each call after that.
class PrefetchLoader : public Loader {
 public:
  /// Keeps up to `depth` >= 1 batches ready.
  PrefetchLoader(std::shared_ptr<const RowStream> stream, const BatchLayout& layout, int64_t depth);
  /// Stops the thread, dropping what it has fetched.
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
