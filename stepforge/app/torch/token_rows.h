// SPDX-License-Identifier: Apache-2.0
// Token ids from a safetensors file as batches.
#pragma once

#include <cstdint>
#include <filesystem>

#include "stepforge/data/batch.h"
#include "stepforge/tensorfile/safetensors.h"

namespace stepforge {

/// Reads
/// - "tokens": int32 [rows, length];
/// - optional "cu_seqlens": int32, boundaries of documents in the flattened tokens, including the ends of
///   rows. Without it each row is one document.
///
/// The label of a token is the next token of its document. Throws FormatError with `path` and the tensor if a
/// tensor is missing or has another type or shape, an id is outside [0, vocab), or the boundaries do not
/// increase from 0 to rows * length.
Batch read_token_rows(const std::filesystem::path& path, int64_t vocab);

/// One row of `batch` as a batch.
Batch one_row(const Batch& batch, int64_t row);

}  // namespace stepforge
