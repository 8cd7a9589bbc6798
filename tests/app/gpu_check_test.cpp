// SPDX-License-Identifier: Apache-2.0
// `stepforge gpu-check` as a command: without a GPU, and with stand-ins for other programs. Its stages: tests/gpu_check.
#include "stepforge/base/json.h"
#include "stepforge/base/machine.h"
#include "tests/app/program.h"
#include "tests/support/write_text.h"

namespace stepforge::testing {
namespace {

/// A folder with an executable script, as the first of PATH.
class OtherProgram {
 public:
  OtherProgram(const std::string& name, const std::string& script) {
    write_text(folder_ / name, "#!/bin/sh\n" + script);
    fs::permissions(folder_ / name, fs::perms::owner_all);
  }
  Strings environment() const { return {format("PATH={}:/usr/bin:/bin", folder_.path().string())}; }

 private:
  TempFolder folder_;
};

TEST(GpuCheckCommand, ListsItsStages) {
  const std::string list = output_of({"gpu-check", "--list"});
  for (const char* name : {"doctor ", "kernels ", "families ", "resume ", "text ", "waits ", "memory ",
                           "processes ", "rates ", "models ", "peer ", "sanitizer "})
    EXPECT_TRUE(contains(list, std::string("  ") + name)) << name;
}

TEST(GpuCheckCommand, SaysNoGpuWithAnExitCodeOfItsOwnAndWhatItWouldHaveRun) {
  if (has_gpu_driver()) GTEST_SKIP() << "this machine has a driver for GPUs";
  const TempFolder folder;
  const fs::path out = folder / "report";
  const ProgramResult result = run_program({"gpu-check", "--out", out.string()});
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_CONTAINS(result.out, "no GPU: no driver", "Nothing was checked", output_of({"gpu-check", "--list"}));
  EXPECT_FALSE(contains(result.out, "passed"));
  const Json report = read_json_file(out / "report.json");
  EXPECT_EQ(report["verdict"], "no GPU");
  EXPECT_EQ(report["would_run"].size(), 12U);
  EXPECT_TRUE(report["stages"].empty());
  EXPECT_EQ(read_file(out / "report.txt"), result.out);
}

TEST(GpuCheckCommand, WritesAReportOfTheStagesThatRan) {
  const TempFolder folder;
  const std::string printed =
      output_of({"gpu-check", "--device", "sim", "--only", "text,kernels", "--out", folder.path().string()});
  EXPECT_CONTAINS(printed, "skipped  kernels", "this device has no kernels of its own", "passed   text",
                  "passed: the report is in");
  EXPECT_LT(printed.find("kernels"), printed.find("text"));
  const Json report = read_json_file(folder / "report.json");
  EXPECT_EQ(report["verdict"], "passed");
  EXPECT_EQ(report["device"], "sim:0");
  EXPECT_EQ(report["stages"].size(), 2U);
  EXPECT_EQ(report["stages"][1]["outcome"], "passed");
  EXPECT_EQ(read_file(folder / "report.txt"), printed);
}

/// The stand-in copies the report that is there while it runs.
TEST(GpuCheckCommand, WritesTheReportOfTheStagesSoFarAndRemovesThatOfAnEarlierRun) {
  const TempFolder folder;
  write_text(folder / "machine.json", "{}");
  const OtherProgram tool("compute-sanitizer",
                          format("cp {}/report.* {}\n", folder.path().string(), (folder / "seen").string()));
  fs::create_directories(folder / "seen");
  const ProgramResult result = run_program(
      {"gpu-check", "--device", "cpu", "--only", "doctor,sanitizer", "--out", folder.path().string()}, "",
      tool.environment());
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  const Json seen = read_json_file(folder / "seen" / "report.json");
  EXPECT_EQ(seen["verdict"], "running");
  ASSERT_EQ(seen["stages"].size(), 1U);
  EXPECT_EQ(seen["stages"][0]["name"], "doctor");
  EXPECT_CONTAINS(read_file(folder / "seen" / "report.txt"), "passed   doctor");
  EXPECT_EQ(read_json_file(folder / "report.json")["verdict"], "passed");
  EXPECT_FALSE(fs::exists(folder / "machine.json"));
}

TEST(GpuCheckCommand, RefusesAStageThatThereIsNot) {
  EXPECT_CONTAINS(refusal_of({"gpu-check", "--only", "speed"}), "--only speed: there is no such stage");
}

TEST(GpuCheckCommand, RunsKernelsUnderComputeSanitizer) {
  const TempFolder folder;
  const Strings args = {"gpu-check",           "--device", "cpu", "--only", "sanitizer", "--out",
                        folder.path().string()};
  // --error-exitcode 9 PROGRAM ARGUMENTS
  const OtherProgram good("compute-sanitizer", "shift 2\n\"$@\"\n");
  const ProgramResult passed = run_program(args, "", good.environment());
  EXPECT_EQ(passed.exit_code, 0) << passed.out << passed.err;
  EXPECT_CONTAINS(read_file(folder / "sanitizer.txt"), "passed   kernels");
  const OtherProgram bad("compute-sanitizer", "echo ERROR SUMMARY: 1 error\nexit $2\n");
  const ProgramResult failed = run_program(args, "", bad.environment());
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_CONTAINS(failed.out, "compute-sanitizer ends with code 9: ERROR SUMMARY: 1 error");
}

TEST(GpuCheckCommand, MeasuresPyTorchBesideItselfIfItIsThere) {
  const TempFolder folder;
  const Strings args = {
      "gpu-check", "--device", "cpu", "--only", "peer", "--peer", "peer.py", "--out", folder.path().string()};
  const OtherProgram python("python3", "[ \"$1\" = -c ] || echo '{\"tokens_per_second\": 123.4}'\n");
  const ProgramResult passed = run_program(args, "", python.environment());
  EXPECT_EQ(passed.exit_code, 0) << passed.out << passed.err;
  EXPECT_CONTAINS(passed.out, "tiny: 123 tokens/s");
  const OtherProgram broken("python3", "[ \"$1\" = -c ] || { echo why; echo no memory; exit 1; }\n");
  const ProgramResult failed = run_program(args, "", broken.environment());
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_CONTAINS(failed.out, "FAILED   peer", "tiny: peer.py ends with code 1: no memory; all of it is in");
  EXPECT_EQ(read_file(folder / "peer.txt"), "why\nno memory\n");
  const OtherProgram without("python3", "echo \"ModuleNotFoundError: No module named 'torch'\"\nexit 1\n");
  const ProgramResult skipped = run_program(args, "", without.environment());
  EXPECT_EQ(skipped.exit_code, 1);  // nothing passed
  EXPECT_CONTAINS(skipped.out, "skipped  peer", "no PyTorch: ModuleNotFoundError", "incomplete: the report");
}

}  // namespace
}  // namespace stepforge::testing
