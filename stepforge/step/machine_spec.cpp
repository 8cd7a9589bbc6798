// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/machine_spec.h"

#include <limits>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

constexpr double kGigabyte = 1e9;
constexpr double kGigabitInBytes = 1e9 / 8;
constexpr double kTera = 1e12;
constexpr double kMicrosecond = 1e-6;

/// No message of the job takes it.
constexpr Link kUnused{.bytes_per_second = std::numeric_limits<double>::infinity()};

/// `number`, which must be known.
double known(double number, const MachineSpec& machine, std::string_view key, std::string_view purpose) {
  if (number > 0) return number;
  throw UsageError(format(
      "machine {}: {} is not known, and {} needs it; a file of your own sets it: uses = [\"{}\"] and {} = NUMBER",
      machine.name, key, purpose, machine.name, key));
}

/// Of one device to all others of its host, at the same time.
Link link_in_host(const MachineSpec& machine) {
  constexpr std::string_view kPurpose = "a job on several devices of a host";
  Link link{.bytes_per_second = 0, .seconds = kMicrosecond * machine.host.latency_us};
  switch (machine.host.connection) {
    case DeviceConnection::none:
      throw UsageError(format(
          "machine {}: host.connection is not known, and {} needs it; a file of your own sets it: \"switch\", \"mesh\" or "
          "\"pcie\"",
          machine.name, kPurpose));
    case DeviceConnection::pcie:
      link.bytes_per_second = kGigabyte * known(machine.device.pcie_gb_per_second, machine,
                                                "device.pcie_gb_per_second", kPurpose);
      break;
    case DeviceConnection::switched:
    case DeviceConnection::mesh:
      link.bytes_per_second = kGigabyte * known(machine.device.link_gb_per_second, machine,
                                                "device.link_gb_per_second", kPurpose);
  }
  return link;
}

/// The part of a host's adapters that one device has if all of them send.
Link link_between_hosts(const MachineSpec& machine) {
  constexpr std::string_view kPurpose = "a job on several hosts";
  const double adapters =
      known(static_cast<double>(machine.host.adapters), machine, "host.adapters", kPurpose);
  const double rate =
      known(machine.network.adapter_gbit_per_second, machine, "network.adapter_gbit_per_second", kPurpose);
  return {.bytes_per_second = kGigabitInBytes * rate * adapters / static_cast<double>(machine.host.devices),
          .seconds = kMicrosecond * machine.network.latency_us};
}

}  // namespace

double PeakTflops::of(DType dtype) const {
  switch (dtype) {
    case DType::f32:
      return fp32;
    case DType::bf16:
      return bf16;
    case DType::f16:
      return fp16;
    default:
      return 0;
  }
}

MachineModel machine_model(const MachineSpec& machine, DType compute, int ranks) {
  const DeviceSpec& device = machine.device;
  const std::string peak = format("device.peak_tflops.{}", dtype_name(compute));
  MachineModel model;
  model.name = format("{} in {}", machine.name, dtype_name(compute));
  model.flops_per_second = kTera * known(device.peak_tflops.of(compute), machine, peak, "precision.compute");
  model.memory_bytes_per_second = kGigabyte * known(device.memory_gb_per_second, machine,
                                                    "device.memory_gb_per_second", "the time of updates");
  const auto devices = static_cast<int>(machine.host.devices);
  const bool within = ranks > 1 && devices > 1;
  model.network = within ? link_in_host(machine) : kUnused;
  if (within && machine.host.connection == DeviceConnection::mesh) model.links_in_host = devices - 1;
  model.between_hosts = ranks > devices ? link_between_hosts(machine) : kUnused;
  if (ranks > devices) model.ranks_per_host = devices;
  return model;
}

}  // namespace stepforge
