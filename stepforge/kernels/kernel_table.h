// SPDX-License-Identifier: Apache-2.0
// The table of operations: of each, the implementations by kind of device, and the rule by which a call picks one.
#pragma once

#include <cstdint>
#include <type_traits>

#include <ATen/core/Tensor.h>

#include "stepforge/kernels/cpu/kernels.h"
#include "stepforge/kernels/cpu_allocator.h"
#include "stepforge/kernels/reference.h"

namespace stepforge {

/// The types of elements for which kernels are written; `checked`: all that the operation accepts.
enum class KernelTypes : uint8_t { fp32_and_bf16, fp32, checked };

/// An operation. Tensors for which it has no kernel run the reference.
template <typename Signature>
struct KernelRow {
  Signature* reference = nullptr;
  Signature* cpu = nullptr;
  KernelTypes types = KernelTypes::fp32_and_bf16;
};

/// A row whose kernels are in this library.
template <auto* kReference, decltype(kReference) kCpu, KernelTypes kTypes = KernelTypes::fp32_and_bf16>
struct BuiltinRow : KernelRow<std::remove_pointer_t<decltype(kReference)>> {
  constexpr BuiltinRow() : KernelRow<std::remove_pointer_t<decltype(kReference)>>{kReference, kCpu, kTypes} {}
};

template <auto* kReference, decltype(kReference) kCpu>
using Fp32Row = BuiltinRow<kReference, kCpu, KernelTypes::fp32>;
template <auto* kReference, decltype(kReference) kCpu>
using CheckedRow = BuiltinRow<kReference, kCpu, KernelTypes::checked>;

/// A constant: a rank gets its own when it starts (make_rank_memory()).
struct KernelTable {
  BuiltinRow<reference::rms_norm_forward, cpu::rms_norm_forward> rms_norm_forward;
  BuiltinRow<reference::rms_norm_backward, cpu::rms_norm_backward> rms_norm_backward;
  BuiltinRow<reference::bias_forward, cpu::bias_forward> bias_forward;
  BuiltinRow<reference::bias_backward, cpu::bias_backward> bias_backward;
  BuiltinRow<reference::gated_forward, cpu::gated_forward> gated_forward;
  BuiltinRow<reference::gated_backward, cpu::gated_backward> gated_backward;
  BuiltinRow<reference::dropout_add_forward, cpu::dropout_add_forward> dropout_add_forward;
  BuiltinRow<reference::dropout_add_backward, cpu::dropout_add_backward> dropout_add_backward;
  BuiltinRow<reference::qk_norm_rope_forward, cpu::qk_norm_rope_forward> qk_norm_rope_forward;
  BuiltinRow<reference::qk_norm_rope_backward, cpu::qk_norm_rope_backward> qk_norm_rope_backward;
  BuiltinRow<reference::latent_heads_forward, cpu::latent_heads_forward> latent_heads_forward;
  BuiltinRow<reference::latent_heads_backward, cpu::latent_heads_backward> latent_heads_backward;
  BuiltinRow<reference::attention_forward, cpu::attention_forward> attention_forward;
  BuiltinRow<reference::attention_backward, cpu::attention_backward> attention_backward;
  BuiltinRow<reference::attention_sink_gradient, cpu::attention_sink_gradient> attention_sink_gradient;
  BuiltinRow<reference::attention_cached, cpu::attention_cached> attention_cached;
  BuiltinRow<reference::cross_entropy, cpu::cross_entropy> cross_entropy;
  BuiltinRow<reference::part_maxima, cpu::part_maxima> part_maxima;
  BuiltinRow<reference::part_terms, cpu::part_terms> part_terms;
  BuiltinRow<reference::part_losses, cpu::part_losses> part_losses;
  BuiltinRow<reference::cap_logits, cpu::cap_logits> cap_logits;
  BuiltinRow<reference::embedding_forward, cpu::embedding_forward> embedding_forward;
  BuiltinRow<reference::embedding_backward, cpu::embedding_backward> embedding_backward;
  BuiltinRow<reference::grouped_product, cpu::grouped_product> grouped_product;
  BuiltinRow<reference::grouped_input_gradient, cpu::grouped_input_gradient> grouped_input_gradient;
  BuiltinRow<reference::grouped_weight_gradient, cpu::grouped_weight_gradient> grouped_weight_gradient;
  BuiltinRow<reference::router_forward, cpu::router_forward> router_forward;
  BuiltinRow<reference::router_backward, cpu::router_backward> router_backward;
  BuiltinRow<reference::gather_rows, cpu::gather_rows> gather_rows;
  BuiltinRow<reference::combine_rows, cpu::combine_rows> combine_rows;
  BuiltinRow<reference::add_expert_bias, cpu::add_expert_bias> add_expert_bias;
  BuiltinRow<reference::expert_bias_gradient, cpu::expert_bias_gradient> expert_bias_gradient;
  BuiltinRow<reference::add_factor_gradients, cpu::add_factor_gradients> add_factor_gradients;
  BuiltinRow<reference::gated_add_forward, cpu::gated_add_forward> gated_add_forward;
  BuiltinRow<reference::gated_add_backward, cpu::gated_add_backward> gated_add_backward;
  Fp32Row<reference::adamw_update, cpu::adamw_update> adamw_update;
  CheckedRow<reference::adamw_8bit_update, cpu::adamw_8bit_update> adamw_8bit_update;
  Fp32Row<reference::lion_update, cpu::lion_update> lion_update;
  CheckedRow<reference::join_norm_terms, cpu::join_norm_terms> join_norm_terms;
  CheckedRow<reference::norm_of_terms, cpu::norm_of_terms> norm_of_terms;
  CheckedRow<reference::norm_terms_by_chunk, cpu::norm_terms_by_chunk> norm_terms_by_chunk;
  CheckedRow<reference::all_finite, cpu::all_finite> all_finite;
  CheckedRow<reference::sum_in_order, cpu::sum_in_order> sum_in_order;
  CheckedRow<reference::reciprocal_or_zero, cpu::reciprocal_or_zero> reciprocal_or_zero;
  CheckedRow<reference::mean_in_order, cpu::mean_in_order> mean_in_order;
  CheckedRow<reference::clip_coefficient, cpu::clip_coefficient> clip_coefficient;
  CheckedRow<reference::flag_if_finite, cpu::flag_if_finite> flag_if_finite;

  bool references_only = false;  ///< kernels.reference: all operations run their references
};

/// Whether the kernels of a row take this tensor.
bool has_cpu_kernel(const KernelTable& table, KernelTypes types, const at::Tensor& tensor);

[[noreturn]] void throw_no_kernel(const at::Tensor& tensor);

/// The implementation of an operation for `tensor`, in the table of this thread's rank.
template <typename Row>
auto* pick(Row KernelTable::* operation, const at::Tensor& tensor) {
  const KernelTable& table = kernels_of_rank();
  const Row& row = table.*operation;
  const bool fused = row.cpu != nullptr && has_cpu_kernel(table, row.types, tensor);
  auto* const implementation = fused ? row.cpu : row.reference;
  if (implementation == nullptr) throw_no_kernel(tensor);
  return implementation;
}

}  // namespace stepforge
