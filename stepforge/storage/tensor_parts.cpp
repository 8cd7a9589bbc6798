#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

std::span<std::byte> bytes_of(const at::Tensor& contiguous) {
  return {static_cast<std::byte*>(contiguous.data_ptr()), contiguous.nbytes()};
}

at::Tensor part_of(const at::Tensor& whole, const TensorBox& box) {
  at::Tensor part = whole;
  for (size_t d = 0; d < box.sizes.size(); ++d) {
    part = part.narrow(static_cast<int64_t>(d), box.offsets[d], box.sizes[d]);
  }
  return part;
}

at::Tensor part_of(const at::Tensor& shard, const HeldBox& held) {
  return shard.narrow(0, held.local, held.elements()).view(held.box.sizes);
}

}  // namespace stepforge
