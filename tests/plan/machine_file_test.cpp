// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/machine_file.h"

#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "tests/support/paths.h"
#include "tests/support/strings.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

MachineSpec shipped(std::string_view name) {
  return load_machine(std::string(name), "test");
}

std::string refused_file(const std::string& text) {
  return message_of<UsageError>([&] { parse_machine(text, "my.toml"); });
}

TEST(ShippedMachines, EqualTheFilesOfTheSourceTree) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() / "machines")) {
    const std::string name = entry.path().stem().string();
    names.insert(name);
    const EmbeddedFile* file = find_embedded(embedded_machines(), name);
    ASSERT_NE(file, nullptr) << name;
    EXPECT_EQ(file->text, read_file(entry.path())) << name;
  }
  EXPECT_EQ(names.size(), embedded_machines().size());
}

TEST(ShippedMachines, CanPlanAJobOnTwoHosts) {
  for (const EmbeddedFile& file : embedded_machines()) {
    const MachineSpec machine = shipped(file.name);
    if (machine.is_part()) continue;
    EXPECT_NO_THROW(machine_model(machine, DType::bf16, static_cast<int>(2 * machine.host.devices)))
        << file.name;
    EXPECT_GT(machine.device.usable_bytes(), 0) << file.name;
  }
}

TEST(ShippedMachines, HaveASourceBesideEachNumberOrItsTable) {
  for (const EmbeddedFile& file : embedded_machines()) {
    EXPECT_TRUE(file.text.starts_with("# ")) << file.name;
    bool of_table = false;
    std::istringstream lines{std::string(file.text)};
    for (std::string line; std::getline(lines, line);) {
      const bool has_comment = line.find('#') != std::string::npos;
      const bool is_string = line.find('"') != std::string::npos;
      if (line.starts_with("[")) of_table = has_comment;
      EXPECT_TRUE(of_table || has_comment || is_string || line.find('=') == std::string::npos)
          << file.name << ": " << line;
    }
  }
}

// What a comparison by eye of several files can miss.
TEST(ShippedMachines, PeaksAreWithoutSparsityAndGrowAsTypesShrink) {
  for (const EmbeddedFile& file : embedded_machines()) {
    const PeakTflops& peak = shipped(file.name).device.peak_tflops;
    EXPECT_EQ(peak.bf16, peak.fp16) << file.name;
    EXPECT_LE(peak.fp32, peak.bf16) << file.name;
    if (peak.tf32 > 0) {
      EXPECT_LE(2 * peak.tf32, 1.03 * peak.bf16) << file.name;
    }
    if (peak.fp8 > 0) {
      EXPECT_NEAR(peak.fp8 / peak.bf16, 2, 0.03) << file.name;
    }
  }
  EXPECT_EQ(shipped("h100-sxm").device.peak_tflops.bf16, 989.4);
}

TEST(ShippedMachines, OfCloudsAreTheirDeviceOnTheirNetwork) {
  const MachineSpec p4d = shipped("aws-p4d");
  EXPECT_EQ(p4d.device, shipped("a100-sxm-40gb").device);
  EXPECT_EQ(p4d.host.devices, 8);
  // 4 x 100 Gbit/s for 8 devices.
  EXPECT_EQ(machine_model(p4d, DType::bf16, 16).between_hosts.bytes_per_second, 6.25e9);
  EXPECT_EQ(machine_model(shipped("gb200"), DType::bf16, 144).between_hosts.bytes_per_second, 5e10);
}

TEST(MachineFile, ChangesWhatItUses) {
  const MachineSpec machine =
      parse_machine("uses = [\"h100-sxm\"]\n[device.peak_tflops]\nbf16 = 600\n", "my.toml");
  EXPECT_EQ(machine.name, "my.toml");
  EXPECT_EQ(machine.device.peak_tflops.bf16, 600);
  EXPECT_EQ(machine.device.peak_tflops.fp32, 66.9);
  EXPECT_EQ(machine.host, shipped("h100-sxm").host);
}

TEST(MachineFile, LaterFilesOfUsesWin) {
  const MachineSpec machine = parse_machine("uses = [\"h100-sxm\", \"ethernet-100g\"]\n", "my.toml");
  EXPECT_EQ(machine.network, shipped("ethernet-100g").network);
  EXPECT_EQ(machine.host.adapters, 1);
  EXPECT_EQ(machine.host.devices, 8);
}

TEST(MachineFile, OfAUserIsFoundBesideTheFileThatUsesIt) {
  const TempFolder folder;
  folder.write("card.toml", "[device]\nmemory_mib = 1000\n");
  const std::string box = folder.write("box.toml", "uses = [\"card.toml\"]\n[host]\ndevices = 2\n").string();
  const MachineSpec machine = load_machine(box, "test");
  EXPECT_EQ(machine.device.memory_mib, 1000);
  EXPECT_EQ(machine.host.devices, 2);
}

TEST(MachineFile, RefusesWrongKeysAndValuesWithTheirPlace) {
  EXPECT_EQ(refused_file("[device]\nmemory_mb = 80\n"),
            "my.toml:2:1: device.memory_mb: unknown key; did you mean device.memory_mib?");
  EXPECT_EQ(refused_file("[device]\nmemory_mib = \"80GB\"\n"),
            "my.toml:2:14: device.memory_mib = \"80GB\": expected an integer (above 0 and at most 1e9)");
  EXPECT_CONTAINS(refused_file("[device]\npower_watts = 0\n"),
                  "my.toml:2:15: device.power_watts = 0: expected a number");
  EXPECT_CONTAINS(refused_file("[host]\nconnection = \"none\"\n"),
                  "my.toml:2:14: host.connection = \"none\": expected one of");
  EXPECT_CONTAINS(refused_file("[host\n"), "my.toml:1:6: not valid TOML");
  EXPECT_CONTAINS(
      refused_file("[device]\nmemory_mib = 10\nruntime_mib = 10\n"),
      "my.toml:2:14: device.memory_mib = 10: expected more than device.runtime_mib = 10 (from my.toml:3:15)");
}

TEST(MachineFile, RefusesUnknownMachinesAndFilesThatUseThemselves) {
  EXPECT_CONTAINS(refused_file("uses = [\"h100\"]\n"),
                  "my.toml:1:9: uses: \"h100\" is no machine; did you mean \"h200\"?", "--machine list");
  EXPECT_CONTAINS(refused_file("uses = [\"nowhere.toml\"]\n"),
                  "my.toml:1:9: uses: machine file nowhere.toml: ");
  const TempFolder folder;
  const std::string path = folder.write("self.toml", "uses = [\"self.toml\", \"self.toml\"]\n").string();
  EXPECT_CONTAINS(message_of<UsageError>([&] { load_machine(path, "test"); }), "are more than 64");
}

TEST(MachineFile, IsUnchangedByWritingAndReading) {
  for (const EmbeddedFile& file : embedded_machines()) {
    MachineSpec machine = shipped(file.name);
    machine.uses.clear();
    MachineSpec again = parse_machine(machine_toml(machine, "measured"), std::string(file.name));
    EXPECT_EQ(again, machine) << machine_toml(machine, "measured");
  }
}

TEST(MachineList, HasEveryFileInLinesOfATerminal) {
  const std::string text = machines_text();
  for (const EmbeddedFile& file : embedded_machines()) EXPECT_CONTAINS(text, format("\n  {} ", file.name));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100U) << line;
}

}  // namespace
}  // namespace stepforge::testing
