// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/kernel_table.h"

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

bool takes_kernel(const KernelTable& table, KernelTypes types, const at::Tensor& tensor) {
  if (table.references_only) return false;
  const at::ScalarType type = tensor.scalar_type();
  return types == KernelTypes::checked || type == at::kFloat ||
         (types == KernelTypes::fp32_and_bf16 && type == at::kBFloat16);
}

void throw_no_kernel(const at::Tensor& tensor) {
  throw Error(format("the table of kernels has none for {} on {}, and no reference",
                     c10::toString(tensor.scalar_type()), tensor.device().str()));
}

}  // namespace stepforge
