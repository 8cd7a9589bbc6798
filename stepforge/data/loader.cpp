// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/loader.h"

#include <chrono>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/data/context_part.h"
#include "stepforge/data/tokens_ahead.h"

namespace stepforge {

namespace {
double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

BatchLayout checked(const BatchLayout& layout) {
  layout.check();
  return layout;
}
}  // namespace

int64_t BatchCursor::first_row() const {
  const int64_t micro_batch = layout_.data_rank * layout_.micro_batches() + micro_batch_;
  return step_row_ + micro_batch * layout_.rows_per_micro_batch;
}

void BatchCursor::advance() {
  if (++micro_batch_ < layout_.micro_batches()) return;
  micro_batch_ = 0;
  step_row_ += layout_.rows_per_step;
}

Loader::Loader(std::shared_ptr<const RowStream> stream, const BatchLayout& layout)
    : stream_(std::move(stream)), layout_(checked(layout)), cursor_(layout, 0) {}

Batch Loader::read(const BatchCursor& cursor) const {
  const auto rows = [&](AnswerChoice answers) {
    return stream_->rows(cursor.first_row(), layout_.rows_per_micro_batch, answers);
  };
  Batch batch = rows(AnswerChoice::own);
  if (layout_.mismatched) batch.mismatched.push_back(rows(AnswerChoice::mismatched));
  return prepared(std::move(batch));
}

Batch Loader::prepared(Batch batch) const {
  weigh_labels(layout_.label_weights, batch);
  add_tokens_ahead(batch, layout_.ahead);
  return take_part(std::move(batch), layout_.part);
}

Batch Loader::blank() const {
  Batch batch = padding_batch(layout_.seq_len, layout_.rows_per_micro_batch);
  if (layout_.mismatched) batch.mismatched = {padding_batch(layout_.seq_len, layout_.rows_per_micro_batch)};
  return prepared(std::move(batch));
}

Batch Loader::next() {
  const auto begin = std::chrono::steady_clock::now();
  Batch batch = read(cursor_);
  cursor_.advance();
  wait_seconds_ += seconds_since(begin);
  return batch;
}

void Loader::restore(const LoaderState& state, bool allow_changed) {
  if (state.rows_consumed < 0)
    throw FormatError(
        format("data state: rows_consumed is {}: it must not be negative", state.rows_consumed));
  if (state.fingerprint != stream_->fingerprint() && !allow_changed) {
    throw UsageError(format(
        "the checkpoint was written with other data (fingerprint {}, now {}): sources, weights, tokenizer, "
        "seed or sequence length differ; restore them, or set checkpoint.allow_changed",
        state.fingerprint, stream_->fingerprint()));
  }
  cursor_ = BatchCursor(layout_, state.rows_consumed);
}

PrefetchLoader::PrefetchLoader(std::shared_ptr<const RowStream> stream, const BatchLayout& layout,
                               int64_t depth)
    : Loader(std::move(stream), layout), depth_(depth) {
  if (depth < 1) throw UsageError(format("prefetch depth {}: it must be at least 1", depth));
  start();
}

PrefetchLoader::~PrefetchLoader() {
  stop();
}

void PrefetchLoader::start() {
  failure_ = nullptr;
  queue_ = std::make_unique<BoundedQueue<Item>>(static_cast<size_t>(depth_));
  thread_ = std::jthread([this, cursor = cursor_] { produce(cursor); });
}

void PrefetchLoader::stop() {
  queue_->close();
  if (thread_.joinable()) thread_.join();
}

void PrefetchLoader::produce(BatchCursor cursor) {
  for (bool failed = false; !failed; cursor.advance()) {
    Item item;
    try {
      item.batch = read(cursor);
    } catch (...) {
      item.failure = std::current_exception();
      failed = true;
    }
    if (!queue_->push(std::move(item))) return;
  }
}

Batch PrefetchLoader::next() {
  if (failure_) std::rethrow_exception(failure_);
  const auto begin = std::chrono::steady_clock::now();
  auto item = queue_->pop();
  wait_seconds_ += seconds_since(begin);
  if (!item) throw Error("the prefetching thread has stopped");
  failure_ = item->failure;
  if (failure_) std::rethrow_exception(failure_);
  cursor_.advance();
  return std::move(item->batch);
}

void PrefetchLoader::restore(const LoaderState& state, bool allow_changed) {
  Loader::restore(state, allow_changed);
  stop();
  start();
}

}  // namespace stepforge
