// SPDX-License-Identifier: Apache-2.0
#include "stepforge/app/doctor_checks.h"

#include <gtest/gtest.h>

#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/support/write_text.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kGibibyte = int64_t{1} << 30;

MachineFacts good_machine() {
  MachineFacts machine;
  machine.host = "box";
  machine.kernel = "Linux 6.1.0 x86_64";
  machine.cpu = {"Test CPU", 8, 4, {"avx2", "avx512f"}};
  machine.memory = {16 * kGibibyte, 8 * kGibibyte};
  machine.usable_threads = 8;
  return machine;
}

TEST(Health, AGpuNeedsADriverThePlugInAndItsLibraries) {
  const TempFolder folder;
  GpuFacts gpu{.driver = false, .plugin = folder.path() / "plugin.so", .failure = {}, .stand_ins = {}};
  EXPECT_CONTAINS(check_gpu(gpu).finding, "no driver");
  EXPECT_EQ(check_gpu(gpu).health, Health::ok);
  gpu.driver = true;
  EXPECT_EQ(check_gpu(gpu).health, Health::warning);
  EXPECT_CONTAINS(check_gpu(gpu).remedy, "make cuda");
  write_text(gpu.plugin, "");
  gpu.failure = "libcublas.so.13: cannot open shared object file";
  EXPECT_EQ(check_gpu(gpu).health, Health::warning);
  EXPECT_CONTAINS(check_gpu(gpu).finding, "computes on the processor", "libcublas.so.13");
  EXPECT_CONTAINS(check_gpu(gpu).remedy, "scripts/setup.sh cuda");
  gpu.failure = "";
  EXPECT_EQ(check_gpu(gpu).health, Health::ok);
  EXPECT_CONTAINS(check_gpu(gpu).finding, "takes a GPU");
}

TEST(Health, WithoutADriverThePlugInIsTriedToo) {
  const TempFolder folder;
  write_text(folder / "plugin.so", "");
  GpuFacts gpu{
      .driver = false, .plugin = folder / "plugin.so", .failure = "libcublas.so.13: no", .stand_ins = {}};
  EXPECT_EQ(check_gpu(gpu).health, Health::ok);
  EXPECT_CONTAINS(check_gpu(gpu).finding, "no driver", "cannot be loaded: libcublas.so.13");
  EXPECT_CONTAINS(check_gpu(gpu).remedy, "scripts/setup.sh cuda");
  gpu.failure = "";
  EXPECT_CONTAINS(check_gpu(gpu).finding, "no driver", "is there, with its libraries");
  EXPECT_EQ(check_gpu(gpu).remedy, "");
  gpu.failure.reset();
  EXPECT_CONTAINS(check_gpu(gpu).finding, "not tried");
}

TEST(Health, NamesTheLibrariesOfCudaThatHaveStandIns) {
  const TempFolder folder;
  EXPECT_EQ(stand_ins_in(folder.path()), std::vector<std::string>());
  write_text(folder / "stand-ins.txt", "libcufft.so.12\nlibcurand.so.10\n");
  write_text(folder / "plugin.so", "");
  const GpuFacts gpu{.driver = true,
                     .plugin = folder / "plugin.so",
                     .failure = "",
                     .stand_ins = stand_ins_in(folder.path())};
  EXPECT_CONTAINS(check_gpu(gpu).finding, "libcufft.so.12, libcurand.so.10", "setup.sh cuda-full");
}

TEST(Health, AGoodMachinePasses) {
  const MachineFacts machine = good_machine();
  EXPECT_EQ(health_table({check_kernel(machine), check_processor(machine), check_memory(machine)}, false),
            "ok    system     Linux 6.1.0 x86_64 on box\n"
            "ok    processor  Test CPU, 4 cores, 8 threads, 8 usable here (avx2 avx512f)\n"
            "ok    memory     8.0 GiB free of 16.0 GiB\n");
}

TEST(Health, WarnsOfAProcessorWithoutAvx2OrWithUnusableCores) {
  MachineFacts machine = good_machine();
  machine.usable_threads = 3;
  EXPECT_EQ(check_processor(machine).health, Health::warning);
  EXPECT_CONTAINS(check_processor(machine).remedy, "taskset");
  machine.cpu.instruction_sets = {"avx"};
  EXPECT_EQ(check_processor(machine).health, Health::warning);
  EXPECT_CONTAINS(check_processor(machine).remedy, "AVX2");
}

TEST(Health, SaysWhetherBf16IsFast) {
  MachineFacts machine = good_machine();
  EXPECT_CONTAINS(check_bf16(machine).finding, "precision.compute = \"fp32\"");
  for (const char* set : {"avx512_bf16", "amx_bf16", "bf16"}) {
    machine.cpu.instruction_sets = {"avx2", set};
    EXPECT_FALSE(contains(check_bf16(machine).finding, "emulated")) << set;
  }
}

TEST(Health, WarnsOfLittleMemory) {
  MachineFacts machine = good_machine();
  machine.memory.available = kGibibyte / 2;
  EXPECT_EQ(check_memory(machine).health, Health::warning);
  machine.memory = {};
  EXPECT_EQ(check_memory(machine).finding, "unknown");
}

TEST(Health, ListsPresetsThatFitIntoTheFreeMemory) {
  const HealthCheck check = check_presets(good_machine(), {{"large", 40 * kGibibyte},
                                                           {"small", kGibibyte},
                                                           {"medium", 8 * kGibibyte},
                                                           {"huge", 400 * kGibibyte}});
  EXPECT_EQ(check.health, Health::ok);
  EXPECT_EQ(check.finding,
            "largest that fit: small (1.0 GiB), medium (8.0 GiB); do not fit: large (40.0 GiB), huge (400.0 "
            "GiB); see stepforge plan --preset large");
  EXPECT_EQ(check_presets(good_machine(), {{"large", 40 * kGibibyte}}).health, Health::warning);
}

TEST(Health, ChecksDiskSpace) {
  EXPECT_EQ(check_disk("runs", "/runs", 100 * kGibibyte).health, Health::ok);
  EXPECT_EQ(check_disk("runs", "/runs", 2 * kGibibyte).health, Health::warning);
  EXPECT_EQ(check_disk("runs", "/runs", kGibibyte / 8).health, Health::failure);
  EXPECT_EQ(check_disk("runs", "/runs", std::nullopt).health, Health::warning);
  EXPECT_EQ(check_disk("runs", "/runs", 2 * kGibibyte).subject, "disk (runs)");
}

TEST(Health, MeasuresTheCacheFolderOrNamesTheRemedy) {
  const TempFolder folder;
  write_text(folder / "file", std::string(2048, 'x'));
  EXPECT_EQ(check_cache_folder(folder.path()).finding, folder.path().string() + ", 2.0 KiB");
  EXPECT_EQ(check_cache_folder(folder / "new").finding, (folder / "new").string() + ", created when needed");
  const HealthCheck blocked = check_cache_folder(folder / "file/below");
  EXPECT_EQ(blocked.health, Health::failure);
  EXPECT_CONTAINS(blocked.remedy, "XDG_CACHE_HOME");
}

TEST(Health, ChecksTheTorchLibrary) {
  EXPECT_EQ(check_torch_library({"/x/libstepforge_torch.so", true, ""}).health, Health::ok);
  EXPECT_EQ(check_torch_library({"/x/libstepforge_torch.so", true, std::nullopt}).finding,
            "/x/libstepforge_torch.so (not tried)");
  const HealthCheck broken = check_torch_library({"/x/libstepforge_torch.so", true, "libc10.so: not found"});
  EXPECT_EQ(broken.health, Health::failure);
  EXPECT_EQ(broken.finding, "cannot be loaded: libc10.so: not found");
  EXPECT_EQ(check_torch_library({"/x/libstepforge_torch.so", false, std::nullopt}).health, Health::failure);
}

TEST(Health, RefusesALibtorchOfAnotherMinorVersion) {
  const TempFolder folder;
  fs::create_directory(folder / "lib");
  write_text(folder / "version.py", "debug = False\n__version__ = '2.11.0+cu130'\n");
  const fs::path library = folder / "lib/libtorch_cpu.so";
  EXPECT_EQ(check_libtorch(library, "2.11.2").health, Health::ok);
  EXPECT_EQ(check_libtorch(library, "").health, Health::ok);
  EXPECT_EQ(check_libtorch(library, "2.11.0").finding, "2.11.0+cu130 at " + (folder / "lib").string());
  EXPECT_EQ(check_libtorch(library, "2.12.0").health, Health::failure);
  EXPECT_EQ(check_libtorch(library, "2.1.0").health, Health::failure);
  EXPECT_EQ(check_libtorch("", "2.11.0").health, Health::warning);
}

TEST(Health, WarnsOfATerminalWithoutUtf8) {
  EXPECT_EQ(check_terminal(true, true, "xterm").finding, "a terminal (xterm), UTF-8");
  EXPECT_EQ(check_terminal(false, false, "").health, Health::warning);
}

TEST(HealthTable, PrintsTheRemedyBelowAndColoursTheVerdict) {
  const std::vector<HealthCheck> checks = {{Health::warning, "a", "low", "add more"},
                                           {Health::failure, "bcd", "none", ""}};
  EXPECT_EQ(health_table(checks, false),
            "warn  a    low\n"
            "           -> add more\n"
            "FAIL  bcd  none\n");
  EXPECT_TRUE(health_table(checks, true).starts_with("\x1b[33mwarn\x1b[0m  a    low\n"));
  EXPECT_EQ(worst_of(checks), Health::failure);
  EXPECT_EQ(worst_of({checks[0]}), Health::warning);
  EXPECT_EQ(worst_of({}), Health::ok);
}

}  // namespace
}  // namespace stepforge::testing
