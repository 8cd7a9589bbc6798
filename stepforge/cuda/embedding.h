// SPDX-License-Identifier: Apache-2.0
// kernels/embedding.h on a GPU. A token outside the vocabulary cannot throw here: its row is NaN, and it has no gradient.
#pragma once

#include <cstdint>

#include "stepforge/base/dtype.h"
#include "stepforge/cuda/stream.h"

namespace stepforge::cuda {

/// A table of embeddings, or a part of one. All pointers are to device memory.
struct EmbeddingTable {
  int64_t rows = 0;
  int64_t width = 0;
  int64_t begin = 0;       ///< the token of its first row
  int64_t vocabulary = 0;  ///< tokens of all parts; 0: the table has all of them
  double factor = 1.0;     ///< of the embeddings
};

/// tokens: [count]. weight: [table.rows, table.width] of `type`, fp32 or bf16. out: [count, table.width], written: 0 for tokens of
/// other parts and for -1.
void embedding_forward(DType type, const int32_t* tokens, int64_t count, const EmbeddingTable& table,
                       const void* weight, void* out, Stream stream);

/// grad_out: [count, table.width] of `type`. grad_weight: fp32, written or, with `accumulate`, added to. order: [count], the
/// indices 0 to count - 1 sorted by token, those of one token ascending: elements are summed in this order.
void embedding_backward(DType type, const int32_t* tokens, const int32_t* order, int64_t count,
                        const EmbeddingTable& table, const void* grad_out, float* grad_weight,
                        bool accumulate, Stream stream);

}  // namespace stepforge::cuda
