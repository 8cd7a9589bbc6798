// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/arrow/table_batches.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include <arrow/ipc/options.h>
#include <arrow/ipc/reader.h>
#include <arrow/type.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/properties.h>
#include <parquet/schema.h>

namespace stepforge {

namespace {

using arrow::RecordBatch;
using arrow::RecordBatchReader;
using arrow::Result;
using arrow::Status;

/// Rows that take about kBatchBytes, by the sizes that the file states.
int64_t rows_of_batch(const parquet::FileMetaData& metadata) {
  constexpr int64_t kBatchBytes = int64_t{8} << 20;
  constexpr int64_t kMaxRows = 4096;
  double bytes = 0;
  for (int group = 0; group < metadata.num_row_groups(); ++group)
    bytes += static_cast<double>(std::max<int64_t>(0, metadata.RowGroup(group)->total_byte_size()));
  const double rows = static_cast<double>(std::max<int64_t>(1, metadata.num_rows()));
  return static_cast<int64_t>(std::clamp(kBatchBytes * rows / std::max(1.0, bytes), 1.0, double{kMaxRows}));
}

/// The leaves of the column, or of all if there is no such column.
std::vector<int> leaves_of(const parquet::SchemaDescriptor& schema,
                           const std::optional<std::string>& column) {
  std::vector<int> leaves;
  for (int leaf = 0; leaf < schema.num_columns(); ++leaf)
    if (column && schema.GetColumnRoot(leaf)->name() == *column) leaves.push_back(leaf);
  if (leaves.empty()) {
    leaves.resize(static_cast<size_t>(schema.num_columns()));
    std::iota(leaves.begin(), leaves.end(), 0);
  }
  return leaves;
}

class ParquetBatches : public RecordBatchReader {
 public:
  static Result<std::shared_ptr<RecordBatchReader>> open(const std::shared_ptr<TableFile>& file,
                                                         arrow::MemoryPool* pool,
                                                         const std::optional<std::string>& column) {
    constexpr int64_t kBufferBytes = int64_t{1} << 18;  // of each column
    parquet::ReaderProperties properties(pool);
    properties.enable_buffered_stream();
    properties.set_buffer_size(kBufferBytes);
    properties.set_page_checksum_verification(true);
    parquet::arrow::FileReaderBuilder builder;
    ARROW_RETURN_NOT_OK(builder.Open(file, properties));
    const auto metadata = builder.raw_reader()->metadata();
    if (metadata->num_columns() == 0) return Status::Invalid("the table has no columns");
    parquet::ArrowReaderProperties to_arrow(/*use_threads=*/false);
    to_arrow.set_pre_buffer(false);
    to_arrow.set_batch_size(rows_of_batch(*metadata));
    auto result = std::make_shared<ParquetBatches>();
    result->rows_ = metadata->num_rows();
    ARROW_ASSIGN_OR_RAISE(result->file_, builder.memory_pool(pool)->properties(to_arrow)->Build());
    std::vector<int> groups(static_cast<size_t>(metadata->num_row_groups()));
    std::iota(groups.begin(), groups.end(), 0);
    ARROW_ASSIGN_OR_RAISE(result->batches_, result->file_->GetRecordBatchReader(
                                                groups, leaves_of(*metadata->schema(), column)));
    return result;
  }

  std::shared_ptr<arrow::Schema> schema() const override { return batches_->schema(); }
  Status ReadNext(std::shared_ptr<RecordBatch>* batch) override {
    ARROW_RETURN_NOT_OK(batches_->ReadNext(batch));
    if (*batch) {
      found_ += (*batch)->num_rows();
    } else if (found_ != rows_) {
      return Status::Invalid("the file states ", rows_, " rows and holds ", found_);
    }
    return Status::OK();
  }

 private:
  std::unique_ptr<parquet::arrow::FileReader> file_;
  std::shared_ptr<RecordBatchReader> batches_;  // after the file, on which it depends
  int64_t rows_ = 0;
  int64_t found_ = 0;
};

arrow::ipc::IpcReadOptions ipc_options(arrow::MemoryPool* pool) {
  auto options = arrow::ipc::IpcReadOptions::Defaults();
  options.memory_pool = pool;
  options.use_threads = false;
  return options;
}

/// Opens with `open(options)`, and again for the column alone.
template <typename Open>
auto open_column(const Open& open, arrow::ipc::IpcReadOptions options,
                 const std::optional<std::string>& column) -> decltype(open(options)) {
  ARROW_ASSIGN_OR_RAISE(auto reader, open(options));
  const int index = column ? reader->schema()->GetFieldIndex(*column) : -1;
  if (index < 0) return reader;
  options.included_fields = {index};
  return open(options);
}

/// The file format: the footer says where the batches are.
class IpcFileBatches : public RecordBatchReader {
 public:
  static Result<std::shared_ptr<RecordBatchReader>> open(const std::shared_ptr<TableFile>& file,
                                                         arrow::MemoryPool* pool,
                                                         const std::optional<std::string>& column) {
    auto result = std::make_shared<IpcFileBatches>();
    const auto open = [&](const auto& options) {
      return arrow::ipc::RecordBatchFileReader::Open(file, options);
    };
    ARROW_ASSIGN_OR_RAISE(result->file_, open_column(open, ipc_options(pool), column));
    return result;
  }

  std::shared_ptr<arrow::Schema> schema() const override { return file_->schema(); }
  Status ReadNext(std::shared_ptr<RecordBatch>* batch) override {
    *batch = nullptr;
    if (next_ == file_->num_record_batches()) return Status::OK();
    return file_->ReadRecordBatch(next_++).Value(batch);
  }

 private:
  std::shared_ptr<arrow::ipc::RecordBatchFileReader> file_;
  int next_ = 0;
};

/// The stream format, as in the cache of Hugging Face's datasets.
class IpcStreamBatches : public RecordBatchReader {
 public:
  static Result<std::shared_ptr<RecordBatchReader>> open(const std::shared_ptr<TableFile>& file,
                                                         arrow::MemoryPool* pool,
                                                         const std::optional<std::string>& column) {
    auto result = std::make_shared<IpcStreamBatches>();
    result->file_ = file;
    const auto open =
        [&](const auto& options) -> Result<std::shared_ptr<arrow::ipc::RecordBatchStreamReader>> {
      ARROW_RETURN_NOT_OK(file->Seek(0));
      return arrow::ipc::RecordBatchStreamReader::Open(file, options);
    };
    ARROW_ASSIGN_OR_RAISE(result->batches_, open_column(open, ipc_options(pool), column));
    return result;
  }

  std::shared_ptr<arrow::Schema> schema() const override { return batches_->schema(); }
  Status ReadNext(std::shared_ptr<RecordBatch>* batch) override {
    ARROW_RETURN_NOT_OK(batches_->ReadNext(batch));
    if (*batch) return Status::OK();
    // To Arrow both are the end of the data.
    ARROW_ASSIGN_OR_RAISE(const int64_t end, file_->Tell());
    if (file_->met_end())
      return Status::Invalid("the mark at the end of the data is missing: the file is truncated");
    if (end < file_->size()) return Status::Invalid("bytes follow the end of the data at byte ", end);
    return Status::OK();
  }

 private:
  std::shared_ptr<TableFile> file_;
  std::shared_ptr<RecordBatchReader> batches_;
};

}  // namespace

Result<std::shared_ptr<RecordBatchReader>> open_batches(const std::shared_ptr<TableFile>& file,
                                                        arrow::MemoryPool* pool,
                                                        const std::optional<std::string>& column) {
  constexpr int64_t kMagicBytes = 4;
  ARROW_ASSIGN_OR_RAISE(const auto begin, file->ReadAt(0, kMagicBytes));
  const auto magic = static_cast<std::string_view>(*begin);
  if (magic == "PAR1" || magic == "PARE") return ParquetBatches::open(file, pool, column);
  if (magic == "ARRO") return IpcFileBatches::open(file, pool, column);
  return IpcStreamBatches::open(file, pool, column);
}

}  // namespace stepforge
