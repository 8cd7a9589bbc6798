// SPDX-License-Identifier: Apache-2.0
// The exported function of libstepforge_arrow.so.
#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <arrow/array/array_base.h>
#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <arrow/status.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/records/arrow/json_rows.h"
#include "stepforge/records/arrow/table_batches.h"
#include "stepforge/records/arrow/table_file.h"
#include "stepforge/records/arrow_library.h"
#include "stepforge/records/content_reader.h"
#include "stepforge/records/json_lines.h"
#include "stepforge/records/table_reader.h"

namespace stepforge {

namespace {

class TableContents : public TableReader {
 public:
  explicit TableContents(const ArrowRequest& request)
      : own_(arrow::system_memory_pool()),
        max_memory_(request.max_memory),
        pool_(&own_, max_memory_),
        file_(std::make_shared<TableFile>(request.path, &pool_)) {
    guarded([&] {
      batches_ = value_of(open_batches(file_, &pool_, request.column));
      rows_to_json_.emplace(*batches_->schema(), name(), std::min(kMaxRecordBytes, max_memory_));
    });
  }

  int64_t position() const override { return ended_ ? file_->size() : file_->bytes_read(); }

 protected:
  bool next_row(std::string& json) override {
    bool found = false;
    guarded([&] {
      found = has_row();
      if (found) append_row(json);
    });
    return found;
  }

 private:
  std::string name() const { return file_->path().string(); }

  [[noreturn]] void fail(const std::string& place, const std::string& fault) const {
    throw FormatError(format("{}: {}", place, fault));
  }

  /// Calls `work`; whatever Arrow throws becomes a FormatError.
  template <typename Work>
  void guarded(const Work& work) const {
    try {
      work();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& fault) {
      fail(name(), fault.what());
    }
  }

  void require(const arrow::Status& status) const {
    if (status.ok()) return;
    file_->rethrow_failure();
    const std::string after = rows_ > 0 ? format(" after row {}", rows_) : "";
    if (status.IsOutOfMemory()) {
      fail(name() + after, format("a part of it needs more than {} of memory: "
                                  "write the table again with fewer rows in a row group or record batch",
                                  human_bytes(max_memory_)));
    }
    fail(name() + after, status.message());
  }

  template <typename Value>
  Value value_of(arrow::Result<Value> result) const {
    require(result.status());
    return std::move(result).ValueUnsafe();
  }

  /// `row`: from 1.
  std::string place_of(int64_t row) const { return format("{}: row {}", name(), row); }

  void append_row(std::string& json) {
    try {
      rows_to_json_->append(*batch_, next_++, json);
    } catch (const FormatError& fault) {
      fail(place_of(rows_ + 1), fault.what());
    }
    ++rows_;
    written_ += std::ssize(json);
    if (expands_too_much(file_->size(), written_))
      fail(name(), format("expands to more than {} times its size", kMaxContentRatio));
  }

  /// Whether batch_ has a row next_; reads the next batch if needed.
  bool has_row() {
    while (!ended_ && (!batch_ || next_ == batch_->num_rows())) {
      next_ = 0;
      require(batches_->ReadNext(&batch_));
      ended_ = !batch_;
      if (batch_) validate();
    }
    return !ended_;
  }

  /// Offsets and indices that point outside, texts that are not UTF-8, and the like.
  void validate() const {
    const arrow::Status status = batch_->ValidateFull();
    if (status.ok()) return;
    for (int64_t row = 0; batch_->Validate().ok() && row < batch_->num_rows(); ++row) {
      for (int column = 0; column < batch_->num_columns(); ++column) {
        const arrow::Status fault = batch_->column(column)->Slice(row, 1)->ValidateFull();
        if (fault.ok()) continue;
        fail(format("{}: column {}", place_of(rows_ + row + 1),
                    quoted_for_message(batch_->column_name(column))),
             fault.message());
      }
    }
    require(status);
  }

  arrow::ProxyMemoryPool own_;  ///< counts what this file takes
  int64_t max_memory_;
  arrow::CappedMemoryPool pool_;
  std::shared_ptr<TableFile> file_;
  std::shared_ptr<arrow::RecordBatchReader> batches_;
  std::optional<JsonRows> rows_to_json_;
  std::shared_ptr<arrow::RecordBatch> batch_;
  int64_t next_ = 0;  ///< row of batch_
  int64_t rows_ = 0;  ///< rows before it in the file
  bool ended_ = false;
  int64_t written_ = 0;  ///< bytes of all rows as JSON
};

}  // namespace

}  // namespace stepforge

extern "C" stepforge::ContentReader* stepforge_arrow_entry(const stepforge::ArrowRequest& request) {
  return std::make_unique<stepforge::TableContents>(request).release();
}
