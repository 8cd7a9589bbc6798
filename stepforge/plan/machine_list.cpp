// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/plan/machine_file.h"

namespace stepforge {

namespace {

/// "-" if it is not known.
std::string number_cell(double number) {
  return number > 0 ? format("{:.4g}", number) : "-";
}

/// Of each device while all of them send.
double network_gb_per_second(const MachineSpec& machine) {
  constexpr double kBits = 8;
  return machine.network.adapter_gbit_per_second / kBits * static_cast<double>(machine.host.adapters) /
         static_cast<double>(machine.host.devices);
}

double host_gb_per_second(const MachineSpec& machine) {
  return machine.host.connection == DeviceConnection::pcie ? machine.device.pcie_gb_per_second
                                                           : machine.device.link_gb_per_second;
}

std::string machine_line(const MachineSpec& machine) {
  const DeviceSpec& device = machine.device;
  constexpr double kMiB = 1024;
  return format("  {:<20}{:>9}{:>9}{:>8}{:>8}{:>8}{:>8}{:>9}{:>9}\n", machine.name,
                number_cell(static_cast<double>(device.memory_mib) / kMiB),
                number_cell(device.memory_gb_per_second), number_cell(device.peak_tflops.fp32),
                number_cell(device.peak_tflops.bf16), number_cell(device.peak_tflops.fp8),
                machine.host.devices, number_cell(host_gb_per_second(machine)),
                number_cell(network_gb_per_second(machine)));
}

}  // namespace

std::string machines_text() {
  std::string machines;
  std::string parts;
  for (const EmbeddedFile& file : embedded_machines()) {
    const std::string name(file.name);
    const MachineSpec machine = load_machine(name, "the program");
    if (machine.is_part())
      parts += format("  {:<22}{}\n", name, file.summary());
    else
      machines += machine_line(machine);
  }
  return "Machines: a device, or what a cloud calls its hosts. Peaks in fp32, bf16 and fp8 are TFLOP/s of\n"
         "data sheets, without sparsity. GB/s are of each device and in each direction: of its memory,\n"
         "within a host, and to other hosts\n\n" +
         format("  {:<20}{:>9}{:>9}{:>8}{:>8}{:>8}{:>8}{:>9}{:>9}\n", "", "GiB", "GB/s", "fp32", "bf16",
                "fp8", "in host", "GB/s", "between") +
         machines + "\nParts, which files of machines name in `uses`\n\n" + parts +
         "\nA file of your own: docs/planning.md\n";
}

}  // namespace stepforge
