// SPDX-License-Identifier: Apache-2.0
// Errors that end a run or keep it from starting.
#include "tests/app/program.h"

namespace stepforge::testing {
namespace {

Strings endless_run(const fs::path& run) {
  return Strings{"train"} + small_run(run) + Strings{"training.steps=100000"};
}

TEST(Nan, StopsWithExitCodeOneNamingStepAndBlock) {
  const TempFolder folder;
  const ProgramResult result =
      run_program(Strings{"train"} + small_run(folder / "run") +
                  Strings{"debug.plant_nan_step=3", "debug.plant_nan_block=layers.1"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_CONTAINS(result.err, "error: step 3: ");
  EXPECT_CONTAINS(result.err, "first not finite in block layers.1 (output)");
}

TEST(RunFolder, RefusesASecondProcess) {
  const TempFolder folder;
  const fs::path run = folder / "run";
  Child first(endless_run(run));
  ASSERT_TRUE(first.wait_until([&] { return fs::exists(run / "run.json"); })) << first.err();
  const ProgramResult second = run_program(endless_run(run));
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_CONTAINS(second.err, format("in use by process {}", first.pid()));
  first.signal(SIGINT);
  EXPECT_EQ(first.wait().exit_code, 130);
}

TEST(RunFolder, IsRefusedIfItCannotBeWritten) {
  const TempFolder folder;
  write_text(folder / "file", "a file in the way");
  EXPECT_CONTAINS(refusal_of(Strings{"train"} + small_run(folder / "file")), "is a file");
  const std::string below = refusal_of(Strings{"train"} + small_run(folder / "file" / "run"));
  EXPECT_CONTAINS(below, "cannot create the run folder");
  // A folder in which not even root can write.
  EXPECT_CONTAINS(refusal_of(Strings{"train"} + small_run("/proc/run")), "/proc/run");
}

TEST(FullDisk, LosesCheckpointsButTrainsToTheEndAndIsReported) {
  // The full disk is simulated by a file size limit of 80 KiB at most, less than the weights need.
  const TempFolder folder;
  const Strings limited = {"-c", "ulimit -f 80; exec \"$0\" \"$@\"", program_path().string(), "train"};
  const ProgramResult result =
      Child(limited + small_run(folder / "run") + Strings{"training.steps=4", "checkpoint.interval=2"}, "",
            {}, "/bin/sh")
          .wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_CONTAINS(result.err, "CHECKPOINT NOT SAVED at step 2");
  EXPECT_CONTAINS(result.err, "step: 4  loss:");
  EXPECT_CONTAINS(result.err, "error: the checkpoint of step 4 could not be saved");
  EXPECT_TRUE(fs::is_empty(folder / "run" / "checkpoint"));
  EXPECT_EQ(run_program(Strings{"train"} + small_run(folder / "run") + Strings{"training.steps=4"}).exit_code,
            0);
}

}  // namespace
}  // namespace stepforge::testing
