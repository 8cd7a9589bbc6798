// SPDX-License-Identifier: Apache-2.0
// Token ids from a safetensors file as batches, and what the model says of each token back into one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "stepforge/data/batch.h"
#include "stepforge/tensorfile/safetensors.h"

namespace stepforge {

/// "tokens": int32 [rows, length]; optional "cu_seqlens": int32, borders of documents over the flattened
/// tokens, rows' ends among them (without it each row is one document). Labels are the next token of the same
/// document. Throws FormatError naming `path` and the tensor: missing, another type or shape, an id outside
/// [0, vocab), borders that do not rise from 0 to rows * length.
Batch read_token_rows(const std::filesystem::path& path, int64_t vocab);

/// The row of `batch` as a batch of its own.
Batch one_row(const Batch& batch, int64_t row);

}  // namespace stepforge
