// SPDX-License-Identifier: Apache-2.0
// Files that describe machines, in TOML: those of machines/, which are part of the program, and a user's own.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "stepforge/base/embedded_file.h"
#include "stepforge/config/config.h"
#include "stepforge/step/machine_spec.h"

namespace stepforge {

constexpr ChoiceNames<4> choice_names(DeviceConnection) {
  return {"none", "switch", "mesh", "pcie"};
}

/// The files machines/<name>.toml of the source tree, sorted by name: devices, hosts, networks and machines of clouds. A
/// device uses a host and a network, so that its name alone is a whole machine.
std::span<const EmbeddedFile> embedded_machines();

/// Reads a machine: one of embedded_machines(), or the file of that path if `name` ends in ".toml". The files that it names in
/// `uses` are read before it, each completed or changed by the next. Keys and values are checked as those of a configuration
/// are; a number that is left out is not known. `asked_at` says in messages where `name` is from.
///
/// Throws UsageError that lists all errors, each with file, line and column, or if there is no such machine.
MachineSpec load_machine(const std::string& name, const std::string& asked_at);

/// The same for the text of a file; `name` is the file's name in messages.
MachineSpec parse_machine(std::string_view text, const std::string& name);

/// The text of a machine file with this content, whose first line is "# " and `summary`. Numbers that are not known are left out.
std::string machine_toml(const MachineSpec& machine, const std::string& summary);

/// All machines of the program as tables: devices with their numbers, machines of clouds, hosts and networks.
std::string machines_text();

}  // namespace stepforge
