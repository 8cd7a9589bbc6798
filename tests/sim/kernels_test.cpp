// SPDX-License-Identifier: Apache-2.0
// A device may have kernels of its own.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/kernels/compute_device.h"
#include "stepforge/kernels/kernel_table.h"
#include "tests/support/throws.h"

namespace stepforge {
namespace {

void zero_instead(const at::Tensor& logits, double) {
  logits.zero_();
}

TEST(DeviceKernels, ARowOfTheDeviceRunsForItsTensorsOnly) {
  const at::TensorOptions device = at::device(compute_device("sim:3", 0).device);
  const ChargeMemory rank(make_rank_memory());
  add_kernels_to_rank([](KernelTable& table) { table.cap_logits.device = zero_instead; });
  const auto largest_after = [](const at::Tensor& logits) {
    cap_logits(logits, 5.0);
    return logits.abs().max().item<float>();
  };
  EXPECT_EQ(largest_after(at::ones({2, 3}, device)), 0.0F);
  EXPECT_GT(largest_after(at::ones({2, 3})), 0.5F);
  EXPECT_GT(largest_after(at::ones({2, 3}, device.dtype(at::kDouble))), 0.5F);  // no kernel for fp64
  add_kernels_to_rank([](KernelTable& table) { table.references_only = true; });
  EXPECT_GT(largest_after(at::ones({2, 3}, device)), 0.5F);
}

TEST(DeviceKernels, RanksOfAHostGetItsDevicesInTurn) {
  EXPECT_EQ(compute_device("sim", 3).device.str(), "sim:3");
  EXPECT_EQ(compute_device("sim", 8).device.str(), "sim:0");
  EXPECT_EQ(compute_device("sim:5", 3).device.str(), "sim:5");
  EXPECT_CONTAINS(testing::message_of<UsageError>([] { compute_device("sim:8", 0); }),
                  "training.device = sim:8", "there are 8 devices");
}

}  // namespace
}  // namespace stepforge
