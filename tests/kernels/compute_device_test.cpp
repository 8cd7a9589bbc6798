// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/compute_device.h"

#include <filesystem>

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/installation.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

TEST(ComputeDevice, TheCpuCountsItsTensors) {
  const ChargeMemory rank(make_rank_memory());
  install_cpu_allocator();
  const ComputeDevice cpu = compute_device("cpu", 3);
  EXPECT_TRUE(cpu.device.is_cpu());
  const int64_t before = cpu.backend->memory().live_bytes;
  const at::Tensor values = at::zeros({100});
  EXPECT_EQ(cpu.backend->memory().live_bytes - before, 400);
  EXPECT_FALSE(cpu.backend->owns(values.data_ptr()));
}

TEST(ComputeDevice, ANameThatIsNoDeviceIsRefused) {
  EXPECT_CONTAINS(message_of<UsageError>([] { compute_device("npu", 0); }), "\"npu\"", "cuda:1");
}

TEST(ComputeDevice, WithoutTheFileOfAPlugInItsKindIsRefused) {
  if (std::filesystem::exists(device_library("cuda"))) GTEST_SKIP() << "this build has the plug-in";
  EXPECT_CONTAINS(message_of<UsageError>([] { compute_device("cuda", 0); }), "training.device = cuda",
                  "libstepforge_cuda.so", "make cuda");
}

TEST(ComputeDevice, NcclNeedsOneThatHasIt) {
  ComputeDevice cpu = cpu_device();
  EXPECT_CONTAINS(
      message_of<UsageError>([&] { use_device_engine(cpu, "cpu", 60); }),
      "comm.backend = nccl carries traffic between GPUs, but training.device = cpu computes on the CPU "
      "here; set training.device to cuda, or comm.backend to auto or gloo");
  cpu.note = "there is no driver";
  EXPECT_CONTAINS(message_of<UsageError>([&] { use_device_engine(cpu, "auto", 60); }),
                  "training.device = auto computes on the CPU here (there is no driver); set");
  ComputeDevice other = cpu_device();
  other.device = c10::Device(c10::DeviceType::Meta);
  EXPECT_CONTAINS(
      message_of<UsageError>([&] { use_device_engine(other, "sim", 60); }),
      "comm.backend = nccl: the plug-in of training.device = sim has no NCCL; set comm.backend to auto");
}

}  // namespace
}  // namespace stepforge::testing
