// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/machine_spec.h"

#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

/// Hosts of four devices, with two adapters of 8 Gbit/s.
MachineSpec small_machine() {
  return {.name = "small",
          .device = {.memory_mib = 1024,
                     .memory_gb_per_second = 20,
                     .runtime_mib = 24,
                     .link_gb_per_second = 30,
                     .pcie_gb_per_second = 4,
                     .peak_tflops = {.fp32 = 1, .bf16 = 8}},
          .host = {.devices = 4, .connection = DeviceConnection::switched, .latency_us = 3, .adapters = 2},
          .network = {.adapter_gbit_per_second = 8, .latency_us = 9}};
}

std::string refusal_of(const MachineSpec& machine, DType compute, int ranks) {
  return message_of<UsageError>([&] { machine_model(machine, compute, ranks); });
}

TEST(MachineRates, AreThoseOfTheTypeInWhichTheJobComputes) {
  EXPECT_EQ(machine_model(small_machine(), DType::f32, 1).flops_per_second, 1e12);
  EXPECT_EQ(machine_model(small_machine(), DType::bf16, 1).flops_per_second, 8e12);
  EXPECT_EQ(machine_model(small_machine(), DType::bf16, 1).memory_bytes_per_second, 2e10);
}

TEST(MachineRates, OfHostsAreSharedByTheirDevices) {
  const MachineModel model = machine_model(small_machine(), DType::bf16, 8);
  EXPECT_EQ(model.ranks_per_host, 4);
  EXPECT_EQ(model.network.bytes_per_second, 3e10);
  EXPECT_DOUBLE_EQ(model.network.seconds, 3e-6);
  // Two adapters of 1 GB/s for four devices.
  EXPECT_EQ(model.between_hosts.bytes_per_second, 5e8);
  EXPECT_DOUBLE_EQ(model.between_hosts.seconds, 9e-6);
}

TEST(MachineRates, OfLinksThatNoMessageTakesAreNotNamed) {
  EXPECT_EQ(machine_text(machine_model(small_machine(), DType::bf16, 1)),
            "small in bf16: 8 TFLOP/s, memory 20 GB/s, 5 us per operation");
  EXPECT_EQ(machine_text(machine_model(small_machine(), DType::bf16, 4)),
            "small in bf16: 8 TFLOP/s, memory 20 GB/s, network 30 GB/s, 5 us per operation");
  EXPECT_EQ(collective_seconds(machine_model(small_machine(), DType::bf16, 1), std::vector{0}, 8, 2), 0);
}

TEST(MachineRates, WithinAHostAreThoseOfItsConnection) {
  MachineSpec machine = small_machine();
  EXPECT_EQ(machine_model(machine, DType::bf16, 4).links_in_host, 1);
  machine.host.connection = DeviceConnection::mesh;
  EXPECT_EQ(machine_model(machine, DType::bf16, 4).network.bytes_per_second, 3e10);
  EXPECT_EQ(machine_model(machine, DType::bf16, 4).links_in_host, 3);
  machine.host.connection = DeviceConnection::pcie;
  EXPECT_EQ(machine_model(machine, DType::bf16, 4).network.bytes_per_second, 4e9);
  EXPECT_EQ(machine_model(machine, DType::bf16, 4).links_in_host, 1);
}

TEST(MachineRates, ThatAreNotKnownAreRefusedOnlyIfTheJobNeedsThem) {
  EXPECT_CONTAINS(refusal_of(small_machine(), DType::f16, 1),
                  "machine small: device.peak_tflops.fp16 is not known, and precision.compute needs it");
  MachineSpec machine = small_machine();
  machine.network = {};
  EXPECT_NO_THROW(machine_model(machine, DType::bf16, 4));
  EXPECT_CONTAINS(refusal_of(machine, DType::bf16, 5),
                  "network.adapter_gbit_per_second is not known, and a job on several hosts needs it");
  machine.host.connection = DeviceConnection::none;
  EXPECT_NO_THROW(machine_model(machine, DType::bf16, 1));
  EXPECT_CONTAINS(refusal_of(machine, DType::bf16, 2), "host.connection is not known");
  machine.device.memory_gb_per_second = 0;
  EXPECT_CONTAINS(refusal_of(machine, DType::bf16, 1), "device.memory_gb_per_second is not known");
}

TEST(DeviceMemory, LeavesOutWhatTheRuntimeTakes) {
  EXPECT_EQ(small_machine().device.usable_bytes(), int64_t{1000} << 20);
}

}  // namespace
}  // namespace stepforge::testing
