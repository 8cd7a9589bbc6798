// SPDX-License-Identifier: Apache-2.0
// Shared by the forward and backward pass of attention: conversion of blocks to and from fp32, dynamic tasks.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/Parallel.h>

#include "stepforge/kernels/attention.h"
#include "stepforge/kernels/cpu/block_gemm.h"
#include "stepforge/kernels/cpu/simd.h"

namespace stepforge::cpu {

constexpr float kLog2E = 1.44269504F;
constexpr float kLn2 = 0.693147181F;

/// One block of queries.
struct QueryBlock {
  int64_t begin;  ///< row of the first query
  int64_t rows;
  int64_t past;  ///< keys before those that only some of them see
  bool causal;   ///< query t sees past + 1 + t keys; otherwise `past`

  int64_t seen() const { return past + (causal ? rows : 0); }
  /// The key with which the first block of keys begins; those before it are outside the window of all rows.
  int64_t first_key(int64_t window) const {
    return window == 0 ? 0 : std::max<int64_t>(past + 1 - window, 0) / kKeyBlock * kKeyBlock;
  }
};

/// Which columns of a block of scores the rows of a strip see: row r those in [begin(r), end(r)).
struct VisibleColumns {
  int64_t columns;  ///< of the block
  int64_t end_of_first;
  int64_t growth;  ///< further columns of each following row
  int64_t window;

  int64_t end(int64_t r) const { return std::clamp<int64_t>(end_of_first + r * growth, 0, columns); }
  int64_t begin(int64_t r) const {
    return window == 0 ? 0 : std::clamp<int64_t>(end_of_first + r * growth - window, 0, end(r));
  }
};

/// The columns of a head in row `row`.
template <typename T>
const T* head_of(const at::Tensor& tensor, int64_t row, int64_t head, int64_t head_dim) {
  return tensor.const_data_ptr<T>() + row * tensor.stride(0) + head * head_dim;
}
template <typename T>
T* mutable_head_of(const at::Tensor& tensor, int64_t row, int64_t head, int64_t head_dim) {
  return tensor.mutable_data_ptr<T>() + row * tensor.stride(0) + head * head_dim;
}

/// to[r][c] = from[r][c] * factor; columns up to `padded` are filled with 0.
void widen_rows(const float* from, int64_t from_row, int64_t rows, int64_t columns, float factor, float* to,
                int64_t padded);
void widen_rows(const BFloat16* from, int64_t from_row, int64_t rows, int64_t columns, float factor,
                float* to, int64_t padded);

/// to[c][r] = from[r][c]; rows of `to` are `to_row` apart and filled with 0 from `rows` up to a multiple of
/// kColumnUnit.
void widen_transposed(const float* from, int64_t from_row, int64_t rows, int64_t columns, float* to,
                      int64_t to_row);
void widen_transposed(const BFloat16* from, int64_t from_row, int64_t rows, int64_t columns, float* to,
                      int64_t to_row);

/// to[r][c] = from[r][c] * factor_of_row[r] (1 when null) * factor.
void narrow_rows(const float* from, int64_t from_row, int64_t rows, int64_t columns,
                 const float* factor_of_row, float factor, float* to, int64_t to_row);
void narrow_rows(const float* from, int64_t from_row, int64_t rows, int64_t columns,
                 const float* factor_of_row, float factor, BFloat16* to, int64_t to_row);

/// Calls body(task, slot) for every task in [0, tasks); each thread takes the next task when it is free. No
/// two running tasks have the same slot in [0, slots), which selects scratch memory. A task's result must not
/// depend on its slot.
template <typename Body>
void parallel_tasks(int64_t tasks, int64_t slots, const Body& body) {
  std::atomic<int64_t> next = 0;
  at::parallel_for(0, slots, 1, [&](int64_t first, int64_t /*last*/) {
    for (int64_t task = next++; task < tasks; task = next++) body(task, first);
  });
}

inline int64_t task_slots(int64_t tasks) {
  return std::clamp<int64_t>(at::get_num_threads(), 1, std::max<int64_t>(tasks, 1));
}

}  // namespace stepforge::cpu
