// SPDX-License-Identifier: Apache-2.0
// device_tree_sum() in a stream of the fake: on the CPU a kernel runs when it is launched.
#define device_tree_sum device_tree_sum_at_once
#include "stepforge/cuda/device_sum.cu"  // NOLINT(bugprone-suspicious-include)
#undef device_tree_sum

#include "tests/nccl/fake_stream.h"

namespace stepforge::cuda {

// The declaration of device_sum.h has the other name here.
void device_tree_sum(const std::byte* staging, std::size_t stride, const std::byte* own, int own_member,
                     int members, std::byte* output, std::size_t bytes, DType dtype, Stream stream);

void device_tree_sum(const std::byte* staging, std::size_t stride, const std::byte* own, int own_member,
                     int members, std::byte* output, std::size_t bytes, DType dtype, Stream stream) {
  stream->enqueue([=] {
    device_tree_sum_at_once(staging, stride, own, own_member, members, output, bytes, dtype, nullptr);
  });
}

}  // namespace stepforge::cuda
