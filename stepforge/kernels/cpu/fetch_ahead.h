// SPDX-License-Identifier: Apache-2.0
// Memory that is fetched while a product computes.
#pragma once

#include <cstdint>

#include "stepforge/kernels/cpu/simd.h"

namespace stepforge::cpu {

/// Rows of memory that will be needed next and that no cache has yet: a product asks for a line in those steps of depth whose
/// numbers have none of the bits `skipped`.
struct FetchAhead {
  const float* line = nullptr;
  int64_t to_next_row = 0;
  int64_t rows = 0;
  int64_t lines = 0;  ///< in each row
  int64_t skipped = 0;
  int64_t row = 0;
};

/// In step k of a product.
STEPFORGE_INLINE void fetch_line(FetchAhead& ahead, int64_t k) {
  if ((k & ahead.skipped) != 0 || ahead.lines == 0) return;
  constexpr int kIntoSecondLevel = 2;
  __builtin_prefetch(ahead.line + ahead.row * ahead.to_next_row, 0, kIntoSecondLevel);
  if (++ahead.row < ahead.rows) return;
  ahead.row = 0;
  ahead.line += 16;  // floats
  --ahead.lines;
}

}  // namespace stepforge::cpu
