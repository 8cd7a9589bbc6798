// SPDX-License-Identifier: Apache-2.0
// Sums over tokens in two stages, without atomics: blocks write sums of parts of the rows, which a second kernel adds in one order.
// Parts follow from the number of rows alone.
#pragma once

#include <cstdint>

#include "stepforge/cuda/stream.h"

namespace stepforge::cuda {

/// Enough parts for every GPU, and rows enough in each that partial sums are a small share of the memory traffic.
constexpr int64_t rows_of_part(int64_t rows) {
  constexpr int64_t kParts = 512;
  constexpr int64_t kMinRows = 16;
  const int64_t even = (rows + kParts - 1) / kParts;
  return even > kMinRows ? even : kMinRows;
}

constexpr int64_t parts_of(int64_t rows) {
  return (rows + rows_of_part(rows) - 1) / rows_of_part(rows);
}

/// Elements of the workspace of an operation that sums `width` columns over `rows` rows.
constexpr int64_t workspace_of(int64_t rows, int64_t width) {
  return parts_of(rows) * width;
}

/// target[c], written: the sum of partials[r * stride + c] over `rows` rows, for c < width.
void sum_columns(const float* partials, int64_t rows, int64_t width, int64_t stride, float* target,
                 Stream stream);

}  // namespace stepforge::cuda
