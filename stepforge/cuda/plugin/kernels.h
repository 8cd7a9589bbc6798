// SPDX-License-Identifier: Apache-2.0
// The operations that have a CUDA kernel, as rows of the table of kernels: functions of tensors that call those of stepforge/cuda, or
// libtorch's own where those are for CUDA only.
//
// A function gets what the operation's public function has checked. Where the kernel cannot take it (a weight of another type, rows
// with gaps) it calls the reference.
#pragma once

#include "stepforge/kernels/kernel_list.h"
#include "stepforge/kernels/kernel_table.h"

namespace stepforge::cuda_plugin {

#define STEPFORGE_CUDA_ROWS(ROW) \
  ROW(rms_norm_forward)          \
  ROW(rms_norm_backward)         \
  ROW(bias_forward)              \
  ROW(bias_backward)             \
  ROW(dropout_add_forward)       \
  ROW(dropout_add_backward)      \
  ROW(qk_norm_rope_forward)      \
  ROW(qk_norm_rope_backward)     \
  ROW(attention_forward)         \
  ROW(attention_backward)        \
  ROW(cap_logits)                \
  ROW(embedding_forward)         \
  ROW(embedding_backward)        \
  ROW(linear_weight_gradient)    \
  ROW(grouped_weight_gradient)   \
  ROW(gated_add_forward)         \
  ROW(gated_add_backward)        \
  ROW(adamw_update)              \
  ROW(lion_update)               \
  ROW(join_norm_terms)           \
  ROW(norm_of_terms)             \
  ROW(norm_terms_by_chunk)       \
  ROW(all_finite)                \
  ROW(sum_in_order)              \
  ROW(reciprocal_or_zero)        \
  ROW(mean_in_order)             \
  ROW(clip_coefficient)          \
  ROW(flag_if_finite)            \
  ROW(gated_forward)             \
  ROW(gated_backward)            \
  ROW(cross_entropy)             \
  ROW(part_maxima)               \
  ROW(part_terms)                \
  ROW(part_losses)

// NOLINTNEXTLINE(bugprone-macro-parentheses): a name that is declared
#define STEPFORGE_DECLARE(name) decltype(reference::name) name;
STEPFORGE_CUDA_ROWS(STEPFORGE_DECLARE)
#undef STEPFORGE_DECLARE

/// Sets KernelRow::device of these operations.
void add_cuda_kernels(KernelTable& table);

}  // namespace stepforge::cuda_plugin
