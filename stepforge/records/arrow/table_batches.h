// SPDX-License-Identifier: Apache-2.0
// The rows of a Parquet or Arrow file as Arrow's record batches, in order, with bounded memory.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <arrow/result.h>

#include "stepforge/records/arrow/table_file.h"

namespace stepforge {

/// Only `column` is read if the table has one of that name. The batches are not validated. Both arguments before it must outlive
/// the result, which fails at the end if rows are missing.
arrow::Result<std::shared_ptr<arrow::RecordBatchReader>> open_batches(
    const std::shared_ptr<TableFile>& file, arrow::MemoryPool* pool,
    const std::optional<std::string>& column);

}  // namespace stepforge
