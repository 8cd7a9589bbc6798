// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/machine_file.h"

#include <array>
#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/error_list.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/config/apply.h"
#include "stepforge/config/schema.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

constexpr auto kMachines = std::to_array<EmbeddedFile>({
#include "machines_embedded.inc"
});

constexpr int kMostFiles = 64;
constexpr int64_t kMostBytesOfAFile = 1 << 20;

/// A number that is given is positive and not absurd.
FieldRules positive(std::string_view unit, double max = 1e9) {
  return {.unit = unit, .max = max, .above = 0};
}

SchemaOf<PeakTflops> peak_schema() {
  const auto rules = [] { return positive("TFLOP/s"); };
  return SchemaOf<PeakTflops>()
      .field("fp32", &PeakTflops::fp32, "Of fp32, computed in full.", rules())
      .field("tf32", &PeakTflops::tf32, "Of fp32, rounded to tf32.", rules())
      .field("bf16", &PeakTflops::bf16, "Of bf16.", rules())
      .field("fp16", &PeakTflops::fp16, "Of fp16, with sums in fp32.", rules())
      .field("fp8", &PeakTflops::fp8, "Of fp8, with sums in fp32.", rules())
      .field("fp4", &PeakTflops::fp4, "Of fp4 with scales.", rules());
}

SchemaOf<DeviceSpec> device_schema() {
  return SchemaOf<DeviceSpec>()
      .field("memory_mib", &DeviceSpec::memory_mib, "Memory, as the driver reports it.", positive("MiB"))
      .field("memory_gb_per_second", &DeviceSpec::memory_gb_per_second, "Rate of the memory.",
             positive("GB/s"))
      .field("runtime_mib", &DeviceSpec::runtime_mib, "Memory that driver, context and libraries take.",
             positive("MiB"))
      .field("link_gb_per_second", &DeviceSpec::link_gb_per_second,
             "Rate of all its links to other devices, in each direction.", positive("GB/s"))
      .field("pcie_gb_per_second", &DeviceSpec::pcie_gb_per_second, "Rate of PCIe in each direction.",
             positive("GB/s"))
      .field("multiprocessors", &DeviceSpec::multiprocessors, "Multiprocessors or compute units.",
             positive("multiprocessors"))
      .field("boost_mhz", &DeviceSpec::boost_mhz, "Highest clock of matrix products.", positive("MHz"))
      .field("l2_mib", &DeviceSpec::l2_mib, "Level 2 cache.", positive("MiB"))
      .field("power_watts", &DeviceSpec::power_watts, "Limit of its power.", positive("W"))
      .table("peak_tflops", &DeviceSpec::peak_tflops, peak_schema(),
             "Peak rates of matrix products without sparsity.");
}

SchemaOf<HostSpec> host_schema() {
  return SchemaOf<HostSpec>()
      .field("devices", &HostSpec::devices, "Devices of a host.", positive("devices", 1 << 14))
      .field("connection", &HostSpec::connection, "How they reach each other.",
             {.choices = {"switch", "mesh", "pcie"}})
      .field("latency_us", &HostSpec::latency_us, "Latency of a message between two of them.", positive("us"))
      .field("adapters", &HostSpec::adapters, "Network adapters of a host, which its devices share.",
             positive("adapters", 1 << 20));
}

SchemaOf<NetworkSpec> network_schema() {
  return SchemaOf<NetworkSpec>()
      .field("adapter_gbit_per_second", &NetworkSpec::adapter_gbit_per_second,
             "Rate of an adapter in each direction.", positive("Gbit/s"))
      .field("latency_us", &NetworkSpec::latency_us, "Latency of a message between two hosts.",
             positive("us"));
}

const TableSchema& machine_schema() {
  static const SchemaOf<MachineSpec> schema =
      SchemaOf<MachineSpec>()
          .field("uses", &MachineSpec::uses, "Machines that this file completes or changes.",
                 {.non_empty = true})
          .table("device", &MachineSpec::device, device_schema(), "A device.")
          .table("host", &MachineSpec::host, host_schema(), "A host.")
          .table("network", &MachineSpec::network, network_schema(), "The network between hosts.");
  return schema;
}

class MachineLoader {
 public:
  /// The machine of this name, after all that it uses.
  void add(const std::string& name, const std::string& asked_at) {
    if (!name.ends_with(".toml")) {
      const EmbeddedFile* file = find_embedded(kMachines, name);
      if (file == nullptr) {
        errors_.add(format("{}: {}", asked_at, unknown_text(name)));
      } else {
        add_text(file->text, {.name = format("machine {}", name), .is_file = true}, {});
      }
      return;
    }
    try {
      const std::filesystem::path path = name;
      add_text(read_file(path, kMostBytesOfAFile), {.name = name, .is_file = true}, path.parent_path());
    } catch (const Error& error) {
      errors_.add(format("{}: machine file {}: {}", asked_at, name, error.what()));
    }
  }

  /// `folder`: paths in `uses` are relative to it.
  void add_text(std::string_view text, const ConfigLayer& layer, const std::filesystem::path& folder) {
    if (++files_ > kMostFiles) {
      if (files_ == kMostFiles + 1)
        errors_.add(format("{}: this file and those that it uses are more than {}", layer.name, kMostFiles));
      return;
    }
    ConfigValue values;
    try {
      values = parse_toml(text);
    } catch (const TomlError& error) {
      errors_.add(format("{}: not valid TOML: {}", layer.place(error.position()), error.what()));
      return;
    }
    const ConfigValue* uses = values.find("uses");
    if (uses != nullptr && uses->kind == ConfigValue::Kind::list) {
      for (const ConfigValue& used : uses->list) add_used(used, layer, folder);
    }
    LayerApplier({machine_schema(), &target_, origins_, /*is_config=*/false}, errors_, refused_, layer)
        .apply(values);
  }

  MachineSpec finish(const std::string& name) {
    const DeviceSpec& device = target_.device;
    if (device.memory_mib > 0 && device.memory_mib <= device.runtime_mib) {
      errors_.add(format(
          "{}: device.memory_mib = {}: expected more than device.runtime_mib = {} (from {}), which the runtime takes",
          origins_.at("device.memory_mib"), device.memory_mib, device.runtime_mib,
          origins_.at("device.runtime_mib")));
    }
    errors_.throw_if_any<UsageError>();
    target_.name = name;
    return std::move(target_);
  }

 private:
  void add_used(const ConfigValue& used, const ConfigLayer& layer, const std::filesystem::path& folder) {
    if (used.kind != ConfigValue::Kind::text) return;  // refused when the layer is applied
    const bool is_file = used.text.ends_with(".toml");
    add(is_file ? (folder / used.text).string() : used.text, layer.place(used.position) + ": uses");
  }

  static std::string unknown_text(const std::string& name) {
    std::vector<std::string> names;
    for (const EmbeddedFile& file : kMachines) names.emplace_back(file.name);
    const std::string near = did_you_mean(name, names);
    return format(
        "\"{}\" is no machine; {}`stepforge plan --machine list` lists them, and the name of a file of your own ends in "
        ".toml",
        name, near.empty() ? "" : format("did you mean \"{}\"? ", near));
  }

  MachineSpec target_;
  std::map<std::string, std::string, std::less<>> origins_;
  ErrorList errors_ = ErrorList::with_places("the machine");
  RefusedFields refused_;
  int files_ = 0;
};

/// The table with its fields that are not the default; nothing if all are.
std::string table_toml(const TableSchema& schema, void* object, const std::string& name) {
  std::string text;
  std::string inner;
  const auto defaults = schema.make_default();
  for (const Field& field : schema.fields()) {
    const FieldSlot slot = field.slot(object);
    if (field.type == FieldType::table) {
      inner += table_toml(*field.table, std::get<TableSlot>(slot).object, dotted(name, field.name));
      continue;
    }
    const std::string value = toml_value(field, slot);
    if (value != toml_value(field, field.slot(defaults.get())))
      text += format("{} = {}\n", field.name, value);
  }
  if (!text.empty() && !name.empty()) text = format("\n[{}]\n{}", name, text);
  return text + inner;
}

}  // namespace

std::span<const EmbeddedFile> embedded_machines() {
  return kMachines;
}

MachineSpec load_machine(const std::string& name, const std::string& asked_at) {
  MachineLoader loader;
  loader.add(name, asked_at);
  return loader.finish(name);
}

MachineSpec parse_machine(std::string_view text, const std::string& name) {
  MachineLoader loader;
  loader.add_text(text, {.name = name, .is_file = true}, {});
  return loader.finish(name);
}

std::string machine_toml(const MachineSpec& machine, const std::string& summary) {
  MachineSpec copy = machine;
  copy.uses.clear();  // all that they said is in `machine`
  return format("# {}\n", summary) + table_toml(machine_schema(), &copy, "");
}

}  // namespace stepforge
