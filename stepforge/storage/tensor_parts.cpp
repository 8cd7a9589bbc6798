// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/tensor_parts.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

std::span<std::byte> bytes_of(const at::Tensor& contiguous) {
  if (!contiguous.is_contiguous()) {
    throw Error(format("a tensor of {} elements is not contiguous, so its bytes cannot be exchanged in place",
                       contiguous.numel()));
  }
  return {static_cast<std::byte*>(contiguous.data_ptr()), contiguous.nbytes()};
}

void use_on_current_stream(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  guard.recordDataPtrOnStream(tensor.storage().data_ptr(), guard.getStream(tensor.device()));
}

void wait_for_device(c10::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

at::Tensor part_of(const at::Tensor& whole, const TensorSlice& slice) {
  at::Tensor part = whole;
  for (size_t d = 0; d < slice.sizes.size(); ++d) {
    part = part.narrow(static_cast<int64_t>(d), slice.offsets[d], slice.sizes[d]);
  }
  return part;
}

at::Tensor part_of(const at::Tensor& shard, const ShardSlice& held) {
  return shard.narrow(0, held.local, held.elements()).view(held.slice.sizes);
}

}  // namespace stepforge
