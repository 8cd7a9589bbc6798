// SPDX-License-Identifier: Apache-2.0
// The table of operations: of each, the implementations by kind of device, and the rule by which a call picks one.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "stepforge/kernels/cpu_allocator.h"
#include "stepforge/kernels/kernel_list.h"

namespace stepforge {

/// The types of elements for which kernels are written; `checked`: all that the operation accepts.
enum class KernelTypes : uint8_t { fp32_and_bf16, fp32, checked };

/// An operation. Tensors for which it has no kernel run the reference.
template <typename Signature>
struct KernelRow {
  Signature* reference = nullptr;
  Signature* cpu = nullptr;
  KernelTypes types = KernelTypes::fp32_and_bf16;
  Signature* device = nullptr;  ///< for tensors of another device, from its plug-in (compute_device.h)
};

/// A rank gets its own when it starts (make_rank_memory(), add_kernels_to_rank()); it does not change afterwards.
struct KernelTable {
// NOLINTBEGIN(bugprone-macro-parentheses): a name that is declared
#define STEPFORGE_ROW(name, types) \
  KernelRow<decltype(reference::name)> name{reference::name, cpu::name, KernelTypes::types};
  STEPFORGE_KERNELS(STEPFORGE_ROW)
// NOLINTEND(bugprone-macro-parentheses)
#undef STEPFORGE_ROW

  bool references_only = false;  ///< kernels.reference: all operations run their references
};

/// Whether kernels of `types` take this tensor.
bool takes_kernel(const KernelTable& table, KernelTypes types, const at::Tensor& tensor);

[[noreturn]] void throw_no_kernel(const at::Tensor& tensor);

/// The implementation of an operation for `tensor`, in the table of this thread's rank.
template <typename Row>
auto* pick(Row KernelTable::* operation, const at::Tensor& tensor) {
  const KernelTable& table = kernels_of_rank();
  const Row& row = table.*operation;
  auto* const fused = tensor.is_cpu() ? row.cpu : row.device;
  auto* const implementation =
      fused != nullptr && takes_kernel(table, row.types, tensor) ? fused : row.reference;
  if (implementation == nullptr) throw_no_kernel(tensor);
  return implementation;
}

}  // namespace stepforge
