// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/planned_machine.h"

#include <algorithm>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/plan/machine_file.h"

namespace stepforge {

MachineModel PlannedMachine::model(DType compute) const {
  return spec ? machine_model(*spec, compute, ranks) : MachineModel{};
}

MemoryBudget PlannedMachine::memory() const {
  const DeviceSpec& device = spec.value().device;
  if (device.memory_mib == 0)
    throw UsageError(format(
        "machine {}: device.memory_mib is not known; give --memory, such as --memory 80GiB", spec->name));
  std::string source = format("are free on {}", spec->name);
  if (device.runtime_mib > 0)
    source += format(" ({} less {} of its runtime)", human_bytes(device.memory_mib << 20),
                     human_bytes(device.runtime_mib << 20));
  return {.bytes = device.usable_bytes(), .source = source, .with_host = false};
}

PlannedMachine plan_machine(const LoadedConfig& loaded, int ranks) {
  const MachineConfig& chosen = loaded.config.machine;
  if (chosen.name.empty()) return {.spec = {}, .ranks = std::max(ranks, 1)};
  PlannedMachine planned{.spec = load_machine(chosen.name, where(loaded, "machine.name") + ": machine.name")};
  const MachineSpec& machine = *planned.spec;
  if (machine.is_part()) {
    throw UsageError(format(
        "{}: machine.name = \"{}\" has no device: it is a part of a machine; write a file with uses = [\"h100-sxm\", "
        "\"{}\"], or name a device",
        where(loaded, "machine.name"), chosen.name, chosen.name));
  }
  const int64_t of_hosts = chosen.hosts * machine.host.devices;
  if (of_hosts > 0 && ranks > 0 && ranks != of_hosts) {
    throw UsageError(format(
        "--world-size {} contradicts machine.hosts = {}: {} hosts of {} devices have {} ranks; give one of both",
        ranks, chosen.hosts, chosen.hosts, machine.host.devices, of_hosts));
  }
  planned.ranks = of_hosts > 0 ? static_cast<int>(of_hosts) : std::max(ranks, 1);
  return planned;
}

}  // namespace stepforge
